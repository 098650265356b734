//! `paceway completions` and `paceway man`: completions for shells and the manual page, made from the list of arguments.

use super::{Args, CommandError, print};
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

pub(super) fn completions(shell: Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "paceway", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

/// Prints one page in roff, with a section for each command.
pub(super) fn man() -> Result<(), CommandError> {
    let mut page = Vec::new();
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page).context("cannot write the page")?;
    for own in command.get_subcommands() {
        let part = clap_mangen::Man::new(own.clone());
        let mut text = Vec::new();
        let name = own.get_name().to_uppercase();
        text.extend(format!(".SH COMMAND {name}\n").into_bytes());
        part.render_synopsis_section(&mut text).context("cannot write the page")?;
        part.render_description_section(&mut text).context("cannot write the page")?;
        part.render_options_section(&mut text).context("cannot write the page")?;
        // The sections of a command become parts of its own section.
        let text = String::from_utf8_lossy(&text);
        let text = [".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"]
            .iter()
            .fold(text.into_owned(), |text, head| text.replace(head, &head.replace(".SH", ".SS")));
        page.extend(text.into_bytes());
    }
    print(String::from_utf8_lossy(&page).trim_end())
}
