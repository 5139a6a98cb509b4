//! The pages of the commands, which are generated from the clap commands of both programs.

use clap::{Arg, Command};

use super::{code, compare, row};

const HEADER: &str = "| option | default | environment | meaning |\n|---|---|---|---|\n";

#[test]
fn the_page_of_each_program_lists_its_commands() {
    for (program, mut command) in
        [("landfall", landfall_scheduler::cli::command()), ("landfall-agent", landfall_agent::cli::command())]
    {
        command.build();
        let page = page(program, &command);
        assert!(page.contains("## Options of every command") && page.contains("130  interrupted"), "{page}");
        assert!(page.matches("\n## `").count() > 4, "{page}");
        compare(&format!("{program}.md"), &page);
    }
}

fn page(program: &str, command: &Command) -> String {
    let mut page = format!(
        "# {program}\n\n{}.\n\nThis page is printed from the program's own options; `{program} COMMAND --help` and the \
         manual pages show the same. A flag\noverrides an environment variable, and a variable overrides the \
         configuration. Settings of files:\n[configuration](configuration.md).\n\n## Options of every command\n\n",
        sentence(&command.get_about().unwrap().to_string())
    );
    page.push_str(&options(command.get_arguments().filter(|arg| arg.is_global_set())));
    if program == "landfall" {
        let variables = landfall_scheduler::cli::LOG_VARIABLES.map(code).join(" or ");
        page.push_str(&format!("\nThe log on standard error is filtered by {variables}.\n"));
    }
    let after = command.get_after_help().unwrap().to_string();
    let (examples, codes) = after.split_once("Exit codes:").unwrap();
    page.push_str(&format!("\n## Exit codes\n\n```text\n{}\n```\n", codes.trim_matches('\n')));
    page.push_str(&shown(examples));
    for command in command.get_subcommands().filter(|command| is_listed(command)) {
        describe(command, program, &mut page);
    }
    page
}

fn is_listed(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

fn describe(command: &Command, parent: &str, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    let commands: Vec<&Command> = command.get_subcommands().filter(|command| is_listed(command)).collect();
    page.push_str(&format!("\n## `{name}`\n\n{}.\n", sentence(&command.get_about().unwrap().to_string())));
    if commands.is_empty() {
        let usage = command.clone().render_usage().to_string();
        page.push_str(&format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ")));
    }
    // Options that all commands have are in a separate section.
    let own = |arg: &&Arg| !arg.is_global_set() || (arg.get_help_heading().is_none() && arg.get_id() == "data_dir");
    let options = options(command.get_arguments().filter(own));
    if !options.is_empty() {
        page.push_str(&format!("\n{options}"));
    }
    if let Some(after) = command.get_after_help() {
        page.push_str(&shown(&after.to_string()));
    }
    for command in commands {
        describe(command, &name, page);
    }
}

fn shown(after: &str) -> String {
    match after.trim() {
        "" => String::new(),
        after => format!("\n```text\n{after}\n```\n"),
    }
}

/// A table of the options in the help; empty without options.
fn options<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let shown = args.filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()));
    let rows: String = shown.map(option).collect();
    if rows.is_empty() { rows } else { format!("{HEADER}{rows}") }
}

fn option(arg: &Arg) -> String {
    let help = arg.get_help().unwrap_or_else(|| panic!("{} has no help", arg.get_id())).to_string();
    let (help, told_default) = bracketed(&help, "default");
    let (help, told_variable) = bracketed(&help, "env");
    let set: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let takes_value = arg.get_action().takes_values();
    let default = match set.is_empty() || !takes_value {
        true => told_default.unwrap_or_default(),
        false => code(set.join(",")),
    };
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).or(told_variable);
    row(&[name(arg, takes_value), default, variable.map_or_else(String::new, code), sentence(&help)])
}

/// The option as typed by a user, with its possible values.
fn name(arg: &Arg, takes_value: bool) -> String {
    let words: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let names = || arg.get_value_names().unwrap_or_default().join(" ");
    let value = if words.is_empty() { names() } else { words.join("|") };
    match arg.get_long() {
        None => code(format!(
            "{}{}",
            value,
            if arg.get_num_args().is_some_and(|n| n.max_values() > 1) { "..." } else { "" }
        )),
        Some(long) => {
            let short = arg.get_short().map_or_else(String::new, |short| format!("-{short}, "));
            let value = if takes_value { format!(" {value}") } else { String::new() };
            code(format!("{short}--{long}{value}"))
        }
    }
}

/// Removes `[label: TEXT]` from a help text. Returns the remaining text, and TEXT; `None` if the
/// text has no label.
fn bracketed(help: &str, label: &str) -> (String, Option<String>) {
    let Some((before, rest)) = help.split_once(&format!("[{label}: ")) else { return (help.to_owned(), None) };
    let (inside, after) = rest.split_once(']').unwrap();
    (format!("{}{after}", before.trim_end()), Some(inside.to_owned()))
}

fn sentence(help: &str) -> String {
    help.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned()
}
