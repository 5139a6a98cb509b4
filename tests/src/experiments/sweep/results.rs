//! The results of cells: one row per cell, medians over seeds, and ratios to the strategy `random`;
//! the names of the methods that crawl a cell; and a file with one line of JSON per finished cell,
//! so that an interrupted run can continue.
//!
//! Each line of the file has a key, which is a digest of the settings and the programs. A run uses
//! only lines with its own key. All other lines remain in the file.

use std::collections::hash_map::DefaultHasher;
use std::fs::{File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use landfall_scheduler::model::Strategy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::{Cell, Point};
use crate::evidence::figures::text_table;

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub cell: Cell,
    /// Megabytes per minute until the fraction `growth_share` of all bytes has arrived.
    pub mb_per_min: f64,
    pub makespan_s: f64,
    /// The coefficient of variation of the busy times of agents; `None` if unknown.
    pub busy_variation: Option<f64>,
    /// Whether the run of the cell is void.
    pub void: bool,
}

/// The medians of a strategy over all seeds, in one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct StrategyMedians {
    pub strategy: String,
    pub mb_per_min: f64,
    pub makespan_s: f64,
    pub busy_variation: Option<f64>,
}

/// The results of all strategies in one cell of a layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub layout: String,
    pub point: Point,
    pub medians: Vec<StrategyMedians>,
}

impl Group {
    pub fn of(&self, strategy: &str) -> Option<&StrategyMedians> {
        self.medians.iter().find(|one| one.strategy == strategy)
    }

    pub fn growth_ratio(&self, strategy: &str) -> Option<f64> {
        Some(self.of(strategy)?.mb_per_min / self.of("random")?.mb_per_min)
    }

    pub(super) fn is_of(&self, layout: &str, unthrottled: bool) -> bool {
        self.layout == layout && self.point.per_site_rps.is_unthrottled() == unthrottled
    }

    fn makespan_ratio(&self, strategy: &str) -> Option<f64> {
        Some(self.of(strategy)?.makespan_s / self.of("random")?.makespan_s)
    }
}

/// The median; `None` if there are no values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values.get(values.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// Groups the rows by layout and point, in the order of their first appearance. Void rows have no
/// effect on the medians.
pub fn groups(rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let Cell { layout, point, strategy, .. } = &row.cell;
        let place = groups.iter().position(|group| group.layout == *layout && group.point == *point);
        let place = place.unwrap_or_else(|| {
            groups.push(Group { layout: layout.clone(), point: *point, medians: Vec::new() });
            groups.len() - 1
        });
        if groups[place].of(strategy).is_some() {
            continue;
        }
        let same = |other: &&Row| {
            let Cell { layout: at, point: other_point, strategy: by, .. } = &other.cell;
            at == layout && other_point == point && by == strategy && !other.void
        };
        let of = |figure: fn(&Row) -> f64| median(rows.iter().filter(same).map(figure).collect());
        if let Some((mb_per_min, makespan_s)) = of(|row| row.mb_per_min).zip(of(|row| row.makespan_s)) {
            let busy_variation = median(rows.iter().filter(same).filter_map(|row| row.busy_variation).collect());
            let strategy = strategy.clone();
            groups[place].medians.push(StrategyMedians { strategy, mb_per_min, makespan_s, busy_variation });
        }
    }
    groups
}

/// A table of all cells with the medians of each strategy. The number in brackets is the ratio of a
/// median to `random`'s median.
pub fn table(groups: &[Group], strategies: &[String]) -> String {
    let fixed = ["layout", "loss", "page KB", "requests/s", "Mbit/s"].map(str::to_owned);
    // The list scheduler has a makespan but no growth.
    let growing: Vec<&String> = strategies.iter().filter(|name| *name != LIST).collect();
    let growth = growing.iter().map(|name| format!("{name}, MB/min"));
    let makespan = strategies.iter().map(|name| format!("{name}, makespan s"));
    let header: Vec<String> = fixed.into_iter().chain(growth).chain(makespan).collect();
    let mut rows = Vec::new();
    for group in groups {
        let Point { loss, page_kb, per_site_rps, access_mbit } = group.point;
        let [page_kb, rate, access_mbit] = [page_kb.to_string(), per_site_rps.to_string(), access_mbit.to_string()];
        let mut row = vec![group.layout.clone(), format!("x{loss}"), page_kb, rate, access_mbit];
        let shown = |value: Option<f64>, ratio: Option<f64>| match value.zip(ratio) {
            Some((value, ratio)) => format!("{value:.1} ({ratio:.2})"),
            None => value.map_or("void".to_owned(), |value| format!("{value:.1}")),
        };
        row.extend(
            growing.iter().map(|name| shown(group.of(name).map(|one| one.mb_per_min), group.growth_ratio(name))),
        );
        row.extend(
            strategies.iter().map(|name| shown(group.of(name).map(|one| one.makespan_s), group.makespan_ratio(name))),
        );
        rows.push(row);
    }
    text_table(&header, &rows)
}

/// The name of the method that crawls the sites a second time with `earliest-finish` and the
/// history of the first crawl.
pub(super) const AGAIN: &str = "earliest-finish, again";
/// The name of the method [`Method::List`]: a list scheduler that knows every round trip, link rate
/// and page size in advance.
pub(super) const LIST: &str = "list, all known";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// A first crawl of the sites with a strategy.
    First(Strategy),
    /// A second crawl of the sites with `earliest-finish`.
    Again,
    List,
}

/// The methods for each cell. `Again` and `List` are included only if `strategies` contains
/// `earliest-finish`.
pub(super) fn methods(strategies: &[Strategy]) -> Vec<Method> {
    let ours = strategies.contains(&Strategy::EarliestFinish);
    let others = [Method::Again, Method::List].into_iter().filter(|_| ours);
    strategies.iter().copied().map(Method::First).chain(others).collect()
}

impl Method {
    pub(super) fn name(self) -> String {
        match self {
            Self::First(strategy) => strategy.to_string(),
            Self::Again => AGAIN.to_owned(),
            Self::List => LIST.to_owned(),
        }
    }
}

#[derive(Debug)]
pub struct CellStore<T> {
    file: PathBuf,
    out: File,
    key: String,
    cells: Vec<(Cell, T)>,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    key: String,
    cell: Cell,
    result: T,
}

impl<T: Clone + Serialize + DeserializeOwned> CellStore<T> {
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
        let lines = read.lines().filter_map(|line| serde_json::from_str::<Line<T>>(line).ok());
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
    pub fn find(&self, cell: &Cell) -> Option<&T> {
        self.cells.iter().rev().find(|(known, _)| known == cell).map(|(_, result)| result)
    }

    pub fn add(&mut self, cell: Cell, result: T) -> anyhow::Result<()> {
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
pub(super) mod tests {
    use super::*;
    use crate::experiments::sweep::settings::Settings;

    pub(in crate::experiments::sweep) fn row(strategy: &str, seed: u64, mb_per_min: f64, void: bool) -> Row {
        let point = Settings::committed().unwrap().base;
        let cell = Cell { layout: "paper".to_owned(), point, strategy: strategy.to_owned(), seed };
        Row { cell, mb_per_min, makespan_s: 1000.0 / mb_per_min, busy_variation: None, void }
    }

    /// One cell with two strategies. The last row of each strategy is void.
    pub(in crate::experiments::sweep) fn some_void() -> [Row; 5] {
        [
            row("random", 1, 100.0, false),
            row("random", 2, 200.0, false),
            row("random", 3, 900.0, true),
            row("gnp-top3", 1, 300.0, false),
            row("gnp-top3", 2, 1.0, true),
        ]
    }

    #[test]
    fn void_rows_do_not_count_in_medians() {
        let groups = groups(&some_void());
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].of("random").map(|one| one.mb_per_min), Some(150.0));
        assert_eq!(groups[0].growth_ratio("gnp-top3"), Some(2.0));
        assert_eq!(groups[0].growth_ratio("gnp-top1"), None);
        let printed = table(&groups, &["random", "gnp-top1", "gnp-top3"].map(str::to_owned));
        assert!(printed.contains("300.0 (2.00)") && printed.contains("void"), "{printed}");
    }

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
