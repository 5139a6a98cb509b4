//! A file with one line of JSON per finished cell, so that an interrupted run can continue.
//!
//! Each line has a key, which is a digest of the settings and the programs. A run uses only lines
//! with its own key. All other lines remain in the file.

use std::collections::hash_map::DefaultHasher;
use std::fs::{File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::Cell;

#[derive(Debug)]
pub struct CellStore<T, C = Cell> {
    file: PathBuf,
    out: File,
    key: String,
    cells: Vec<(C, T)>,
}

#[derive(Serialize, Deserialize)]
struct Line<C, T> {
    key: String,
    cell: C,
    result: T,
}

impl<T, C> CellStore<T, C>
where
    T: Clone + Serialize + DeserializeOwned,
    C: PartialEq + Serialize + DeserializeOwned,
{
    /// Opens or creates a file, and reads the cells whose lines have the key `key`.
    pub fn open(file: &Path, key: &str) -> anyhow::Result<Self> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let read = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
        };
        // Truncated lines, and lines of an older format, are skipped.
        let lines = read.lines().filter_map(|line| serde_json::from_str::<Line<C, T>>(line).ok());
        let cells = lines.filter(|line| line.key == key).map(|line| (line.cell, line.result)).collect();
        let mut out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("open {}", file.display()))?;
        if !read.is_empty() && !read.ends_with('\n') {
            out.write_all(b"\n").with_context(|| format!("write {}", file.display()))?;
        }
        Ok(Self { file: file.to_owned(), out, key: key.to_owned(), cells })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The result of a cell; `None` if the cell is not finished.
    pub fn find(&self, cell: &C) -> Option<&T> {
        self.cells.iter().rev().find(|(known, _)| known == cell).map(|(_, result)| result)
    }

    pub fn add(&mut self, cell: C, result: T) -> anyhow::Result<()> {
        let line = Line { key: self.key.clone(), cell, result };
        let mut text = serde_json::to_string(&line).context("write a cell as JSON")?;
        text.push('\n');
        self.out.write_all(text.as_bytes()).with_context(|| format!("write {}", self.file.display()))?;
        self.cells.push((line.cell, line.result));
        Ok(())
    }
}

/// Computes the key, a digest of the settings and of the files of the programs.
pub fn key(settings: &str, programs: &[&Path]) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    settings.hash(&mut hasher);
    for program in programs {
        std::fs::read(program).with_context(|| format!("read {}", program.display()))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The path of a file in the folder `folder`, which is next to the folder with the lab's
/// executable.
pub fn default_file(folder: &str, name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the lab's own executable")?;
    let target = own.ancestors().nth(2).context("find the target directory")?;
    Ok(target.join(folder).join(name))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    fn cell(seed: u64) -> Cell {
        let point = Settings::committed().unwrap().base;
        Cell { layout: "paper".to_owned(), point, strategy: "random".to_owned(), seed }
    }

    #[test]
    fn finished_cells_are_found_only_under_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sweep/cells.jsonl");
        let mut store = CellStore::<f64>::open(&file, "a").unwrap();
        assert_eq!(store.find(&cell(1)), None);
        store.add(cell(1), 198.8).unwrap();
        assert_eq!(store.find(&cell(1)), Some(&198.8));
        drop(store);
        assert_eq!(CellStore::<f64>::open(&file, "b").unwrap().find(&cell(1)), None);
        let store = CellStore::<f64>::open(&file, "a").unwrap();
        assert_eq!((store.find(&cell(1)), store.find(&cell(2))), (Some(&198.8), None));
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cells.jsonl");
        CellStore::<f64>::open(&file, "a").unwrap().add(cell(1), 1.0).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}{}", &text[..text.len() / 2])).unwrap();
        let mut store = CellStore::<f64>::open(&file, "a").unwrap();
        store.add(cell(2), 2.0).unwrap();
        let store = CellStore::<f64>::open(&file, "a").unwrap();
        assert_eq!((store.find(&cell(1)), store.find(&cell(2))), (Some(&1.0), Some(&2.0)));
    }

    #[test]
    fn a_key_depends_on_the_settings_and_the_programs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, b"one").unwrap();
        let one = key("x", &[&program]).unwrap();
        assert_eq!(one, key("x", &[&program]).unwrap());
        assert_ne!(one, key("y", &[&program]).unwrap());
        std::fs::write(&program, b"two").unwrap();
        assert_ne!(one, key("x", &[&program]).unwrap());
        assert!(key("x", &[Path::new("/nowhere/lab")]).is_err());
    }
}
