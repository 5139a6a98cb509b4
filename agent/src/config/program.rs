//! Splits the command of an external crawler into words, and finds the program that it names.

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Splits a command into words as a shell does, but expands nothing: `$`, `*`, `|` and `>` have no
/// special meaning.
pub(crate) fn words(command: &str) -> Result<Vec<String>, String> {
    match shlex::split(command) {
        None => Err("a quotation does not end".to_owned()),
        Some(words) if words.is_empty() => Err("the command is empty".to_owned()),
        Some(words) => Ok(words),
    }
}

/// Makes the program's path absolute if it contains a slash, because crawlers run in their own
/// folders.
pub(crate) fn make_absolute(command: &mut [String], folder: &Path) {
    if let Some(program) = command.first_mut().filter(|program| program.contains('/'))
        && let Ok(absolute) = std::path::absolute(folder.join(&*program))
        && let Some(absolute) = absolute.to_str()
    {
        absolute.clone_into(program);
    }
}

/// The remedy that messages suggest for [`NoProgram`].
pub(crate) const REMEDY: &str = "install it, or correct --exec, or exec.command in agent.toml";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoProgram {
    #[error("exec.command is empty")]
    Empty,
    #[error("the crawler '{0}' is in no folder of PATH")]
    NotInPath(String),
    #[error("the crawler {0} is not a program")]
    NotProgram(String),
}

/// The path of a command's program.
pub(crate) fn find(command: &[String]) -> Result<PathBuf, NoProgram> {
    find_in(command, std::env::var_os("PATH").unwrap_or_default().as_os_str())
}

fn find_in(command: &[String], path: &std::ffi::OsStr) -> Result<PathBuf, NoProgram> {
    let name = command.first().filter(|name| !name.is_empty()).ok_or(NoProgram::Empty)?;
    if name.contains('/') {
        let file = PathBuf::from(name);
        return if is_program(&file) { Ok(file) } else { Err(NoProgram::NotProgram(name.clone())) };
    }
    // Ignore relative folders in PATH. Each crawler runs in its own folder, so a relative folder
    // would be a different folder for each crawler.
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let found = folders.map(|folder| folder.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| NoProgram::NotInPath(name.clone()))
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_command_is_split_into_words_without_expansions() {
        let shell = words(r#"sh -c 'exec wget2 --mirror "$LANDFALL_URL"'"#).unwrap();
        assert_eq!(shell, ["sh", "-c", r#"exec wget2 --mirror "$LANDFALL_URL""#]);
        assert_eq!(words("a $HOME | b > c *").unwrap(), ["a", "$HOME", "|", "b", ">", "c", "*"]);
        assert_eq!(words("a 'b").unwrap_err(), "a quotation does not end");
        assert_eq!(words("  ").unwrap_err(), "the command is empty");
    }

    #[test]
    fn a_missing_program_is_named() {
        let path = std::ffi::OsStr::new(":.:/nowhere:/bin");
        assert_eq!(find_in(&owned(&["sh", "-c"]), path).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find_in(&owned(&["/bin/sh"]), path).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find_in(&owned(&["wget9"]), path), Err(NoProgram::NotInPath("wget9".to_owned())));
        // A folder is not a program, and neither is a file that cannot be executed.
        for name in ["/bin", "/etc/passwd"] {
            assert_eq!(find_in(&owned(&[name]), path), Err(NoProgram::NotProgram(name.to_owned())));
        }
        assert_eq!(find_in(&[], path), Err(NoProgram::Empty));
        assert_eq!(find_in(&owned(&[""]), path), Err(NoProgram::Empty));
    }

    #[test]
    fn only_a_path_is_relative_to_a_folder() {
        for (program, expected) in [("crawl.sh", "crawl.sh"), ("./crawl.sh", "/a/crawl.sh"), ("/b/c", "/b/c")] {
            let mut command = owned(&[program, "x/y"]);
            make_absolute(&mut command, Path::new("/a"));
            assert_eq!(command, [expected, "x/y"]);
        }
    }
}
