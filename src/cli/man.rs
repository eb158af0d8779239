//! `man`: the manual page, in roff.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use super::{Cli, CliError, Process};

/// Prints the manual page.
#[derive(Args, Debug)]
pub(super) struct Man;

/// The sections that are not made from flags, as roff.
const MORE: &str = r#".SH FILES
.TP
.I /etc/agentgauge/agentgauge.toml
The configuration of the packaged service. Every option and its default:
.IR /usr/share/doc/agentgauge/config/agentgauge.toml .
.SH ENVIRONMENT
.TP
.B AGENTGAUGE__SECTION__OPTION
Sets an option over the file, such as AGENTGAUGE__LOG__LEVEL=warn. Flags go over both.
.SH EXIT STATUS
.TP
.B 0
All went well.
.TP
.B 1
Something else failed.
.TP
.B 2
A gate was not met: \-\-fail\-under, or expectations.
.TP
.B 64
The command line or the configuration is wrong.
"#;

impl Man {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let mut command = Cli::command();
        // Fills in inherited values of subcommands, such as their full names.
        command.build();
        let page = Page::new(command.clone());
        page.render_title(process.out)
            .and_then(|()| page.render_name_section(process.out))
            .and_then(|()| page.render_synopsis_section(process.out))
            .and_then(|()| page.render_description_section(process.out))
            .and_then(|()| page.render_options_section(process.out))
            .and_then(|()| commands(&command, process))
            .and_then(|()| process.out.write_all(MORE.as_bytes()))
            .and_then(|()| page.render_version_section(process.out))
            .map_err(CliError::Output)
    }
}

/// Writes all commands into the page, each with its usage and options.
fn commands(command: &Command, process: &mut Process<'_>) -> std::io::Result<()> {
    writeln!(process.out, ".SH COMMANDS")?;
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        writeln!(process.out, ".SS \"agentgauge {}\"", command.get_name())?;
        if let Some(about) = command.get_about() {
            writeln!(process.out, "{}.", escaped(&about.to_string()))?;
        }
        for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
            let name = match (argument.get_long(), argument.get_value_names()) {
                (Some(long), Some([value, ..])) if argument.get_action().takes_values() => {
                    format!("--{long} <{value}>")
                }
                (Some(long), _) => format!("--{long}"),
                (None, Some([value, ..])) => format!("<{value}>"),
                (None, _) => format!("<{}>", argument.get_id()),
            };
            writeln!(process.out, ".TP\n.B {}", escaped(&name))?;
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            writeln!(process.out, "{}", escaped(&help))?;
        }
    }
    Ok(())
}

/// Escapes a line for roff, so that nothing in it is an escape or a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', r"\e").replace('-', r"\-").replace('\n', " ");
    if text.starts_with(['.', '\'']) { format!(r"\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_no_request() {
        assert_eq!(escaped(".so /etc/passwd"), r"\&.so /etc/passwd");
        assert_eq!(escaped("a\\b --c"), r"a\eb \-\-c");
    }
}
