//! The folder of crawls that are under way: a file a lease, from which the crawl's own task goes on after a restart.
//!
//! A new lease of a task takes over the file of the one before. A file goes when its outcome is in the outbox; one that nobody
//! came back for goes when it is old.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::outbox::LeaseKey;

/// What a crawl's file ends in.
const KEPT: &str = "crawl";
/// How long a crawl's file is kept that nobody comes back for: a task that returns after a week is as well begun anew.
const MOST_AGE: Duration = Duration::from_secs(7 * 86_400);

/// How often it is looked for such files.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// The folder of crawls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct KeptCrawls {
    folder: Arc<Path>,
    /// When old files were removed last; never held while they are.
    looked: Arc<Mutex<Instant>>,
}

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("use {folder} for crawls")]
pub struct OpenError {
    /// The folder.
    folder: PathBuf,
    /// What the system said.
    source: io::Error,
}

impl KeptCrawls {
    /// Opens the folder, which is made if need be, and removes what is old.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let refused = |source| OpenError { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(refused)?;
        remove_old(folder).map_err(refused)?;
        Ok(Self { folder: folder.into(), looked: Arc::new(Mutex::new(Instant::now())) })
    }

    /// Whether it is time to look for old files; once an hour.
    fn looks(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.elapsed() >= LOOK_EVERY;
        if due {
            *looked = Instant::now();
        }
        due
    }

    /// The file for a lease: that of a former lease of its task, where there is one.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(crate) async fn file_of(&self, key: LeaseKey) -> io::Result<PathBuf> {
        let (folder, looks) = (Arc::clone(&self.folder), self.looks());
        blocking(move || {
            if looks {
                remove_old(&folder)?;
            }
            let wanted = folder.join(name(key));
            let mut former = files_of(&folder, key)?;
            former.retain(|(token, _)| *token < key.token);
            former.sort_unstable();
            // The newest knows most; the others are of no use any more.
            if let Some((_, newest)) = former.pop() {
                std::fs::rename(newest, &wanted)?;
            }
            former.iter().try_for_each(|(_, file)| std::fs::remove_file(file))?;
            Ok(wanted)
        })
        .await
    }

    /// Removes what is kept of a lease, and of former ones of its task.
    pub(crate) async fn forget(&self, key: LeaseKey) {
        let folder = Arc::clone(&self.folder);
        let removed = blocking(move || {
            let files = files_of(&folder, key)?;
            files.iter().filter(|(token, _)| *token <= key.token).try_for_each(|(_, file)| std::fs::remove_file(file))
        })
        .await;
        if let Err(error) = removed {
            // It goes when it is old.
            tracing::warn!(task.id = key.task_id, token = key.token, %error, "a finished crawl stays on the disk");
        }
    }
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(io::Error::other)?
}

fn remove_old(folder: &Path) -> io::Result<()> {
    for file in files(folder)? {
        let age = match file.metadata().and_then(|metadata| metadata.modified()) {
            // A file from the future is not old.
            Ok(changed) => clock::wall().duration_since(changed).unwrap_or_default(),
            // Its crawl has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if age > MOST_AGE {
            std::fs::remove_file(&file)?;
        }
    }
    Ok(())
}

fn name(key: LeaseKey) -> String {
    format!("{}-{}.{KEPT}", key.task_id, key.token)
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let ends = |path: &PathBuf| path.extension().is_some_and(|ending| ending == KEPT);
    files.filter(|path| path.as_ref().map_or(true, ends)).collect()
}

/// The files of a lease's task, with their tokens.
fn files_of(folder: &Path, key: LeaseKey) -> io::Result<Vec<(i64, PathBuf)>> {
    let token = |path: &Path| {
        let (task, token) = path.file_stem()?.to_str()?.split_once('-')?;
        (task.parse() == Ok(key.task_id)).then(|| token.parse().ok()).flatten()
    };
    let files = files(folder)?.into_iter().filter_map(|path| token(&path).map(|token| (token, path)));
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task_id: i64, token: i64) -> LeaseKey {
        LeaseKey { task_id, token }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn a_new_lease_takes_over_the_newest_file_of_its_task_and_an_outcome_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptCrawls::open(folder.path()).unwrap();
        for (task, token, text) in [(7, 2, "older"), (7, 10, "newer"), (8, 1, "another"), (7, 30, "of a lease to come")]
        {
            std::fs::write(folder.path().join(name(key(task, token))), text).unwrap();
        }
        std::fs::write(folder.path().join("x-y.crawl"), "no lease's").unwrap();
        let file = kept.file_of(key(7, 11)).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(names(folder.path()), ["7-11.crawl", "7-30.crawl", "8-1.crawl", "x-y.crawl"]);
        assert!(!kept.file_of(key(9, 1)).await.unwrap().exists());
        kept.forget(key(7, 11)).await;
        assert_eq!(names(folder.path()), ["7-30.crawl", "8-1.crawl", "x-y.crawl"]);
    }

    #[test]
    fn what_nobody_comes_back_for_goes() {
        let folder = tempfile::tempdir().unwrap();
        for (task, age) in [(1, MOST_AGE + Duration::from_secs(60)), (2, Duration::ZERO)] {
            let file = std::fs::File::create(folder.path().join(name(key(task, 1)))).unwrap();
            file.set_modified(clock::wall() - age).unwrap();
        }
        KeptCrawls::open(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["2-1.crawl"]);
    }
}
