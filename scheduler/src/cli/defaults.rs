//! Defaults of the output flags, from environment variables or else from the section `[defaults]`
//! of client.toml.
//!
//! The defaults become default values of clap's flags, so that help and completions show them. A
//! default that a command does not support, such as CSV for a single object, does not affect the
//! command.

use clap::{Arg, ArgMatches, FromArgMatches};

use super::ConnectionArgs;
use super::connection::data_dir;
use crate::app::exit::usage;
use crate::app::token_and_client_file::{ClientFile, DefaultColor, DefaultFormat, Defaults};

/// A flag that can have a default, the environment variable for it, and the variable's values.
struct Preference {
    flag: &'static str,
    variable: &'static str,
    values: &'static [&'static str],
}

const PREFERENCES: [Preference; 3] = [
    Preference { flag: "format", variable: "LANDFALL_FORMAT", values: &["table", "json", "csv"] },
    Preference { flag: "wide", variable: "LANDFALL_WIDE", values: &["true", "false"] },
    Preference { flag: "color", variable: "LANDFALL_COLOR", values: &["auto", "always", "never"] },
];

/// The defaults that the user has chosen: flags with their values.
pub(super) type Chosen = Vec<(&'static str, &'static str)>;

/// Finds the defaults that apply to a command line.
///
/// # Errors
/// If a variable has an invalid value, or client.toml is invalid.
pub(super) fn chosen(matches: &ArgMatches) -> anyhow::Result<Chosen> {
    let stored = if prints_answer(matches) { stored(matches)? } else { Defaults::default() };
    let mut chosen = Chosen::new();
    for Preference { flag, variable, values } in PREFERENCES {
        let value =
            match std::env::var(variable) {
                Ok(set) if !set.is_empty() => {
                    Some(values.iter().copied().find(|value| *value == set).ok_or_else(|| {
                        usage(format!("{variable} must be one of {}, but is '{set}'", values.join(", ")))
                    })?)
                }
                _ => match flag {
                    "format" => stored.format.map(DefaultFormat::name),
                    "wide" => stored.wide.map(|wide| if wide { "true" } else { "false" }),
                    _ => stored.color.map(DefaultColor::name),
                },
            };
        chosen.extend(value.map(|value| (flag, value)));
    }
    Ok(chosen)
}

/// Whether the user can choose the format of the command's output. Commands that run a scheduler
/// have no such choice.
fn prints_answer(matches: &ArgMatches) -> bool {
    let mut command = matches;
    while let Some((_, subcommand)) = command.subcommand() {
        command = subcommand;
    }
    command.try_contains_id("format").unwrap_or(false)
}

fn stored(matches: &ArgMatches) -> anyhow::Result<Defaults> {
    let connection = ConnectionArgs::from_arg_matches(matches).unwrap_or_default();
    // Without a data directory there is no client.toml. Commands that need the directory report
    // the error themselves.
    let Ok(data_dir) = data_dir(&connection) else { return Ok(Defaults::default()) };
    Ok(ClientFile::defaults(&data_dir)?)
}

/// Makes the chosen values the defaults of all flags that accept these values.
pub(super) fn apply(command: clap::Command, chosen: &Chosen) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| match chosen.iter().find(|(flag, _)| arg.get_id() == flag) {
        Some((_, value)) if accepts(&arg, value) => arg.default_value(*value),
        _ => arg,
    });
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, |command| apply(command, chosen)))
}

fn accepts(arg: &Arg, value: &str) -> bool {
    let is_switch = !arg.get_action().takes_values();
    is_switch || arg.get_possible_values().iter().any(|possible| possible.matches(value, false))
}

/// Turns colours on or off for the whole process. For `auto`, the crate `console` decides based on
/// the terminal, NO_COLOR and CLICOLOR_FORCE.
pub(super) fn set_colors(choice: clap::ColorChoice) {
    let on = match choice {
        clap::ColorChoice::Auto => return,
        clap::ColorChoice::Always => true,
        clap::ColorChoice::Never => false,
    };
    console::set_colors_enabled(on);
    console::set_colors_enabled_stderr(on);
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    #[test]
    fn a_default_is_what_a_flag_overrides_and_what_a_command_can_follow() {
        let chosen: Chosen = vec![("format", "csv"), ("wide", "true"), ("color", "never")];
        let value = |typed: &[&str], flag: &str| {
            let matches = apply(command(), &chosen).try_get_matches_from(typed).unwrap();
            let mut command = &matches;
            while let Some((_, subcommand)) = command.subcommand() {
                command = subcommand;
            }
            command.get_raw(flag).unwrap().next().unwrap().to_string_lossy().into_owned()
        };
        assert_eq!(value(&["landfall", "agents", "list"], "format"), "csv");
        assert_eq!(value(&["landfall", "agents", "list", "-o", "table"], "format"), "table");
        assert_eq!(value(&["landfall", "agents", "show", "a"], "format"), "table");
        assert_eq!(value(&["landfall", "agents", "show", "a"], "wide"), "true");
        assert_eq!(value(&["landfall", "agents", "show", "a"], "color"), "never");
        assert_eq!(value(&["landfall", "agents", "show", "a", "--color", "auto"], "color"), "auto");
    }
}
