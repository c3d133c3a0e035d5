//! `smolrun bundle`: this program and a model in one file, and what that file does when it runs.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{env, io};

use clap::CommandFactory;
use smolconv::bundle::{Bundle, Mark};
use smolconv::terminal::parse;
use smolconv::write;
use smolrun::Model;
use smolrun::generation::Sampler;

use crate::args::{Args, BundleArgs, GenerateArgs};
use crate::exit_code::WrongUsage;
use crate::output::tell;
use crate::sampling::Defaults;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether this program is one of a bundle.
static MARK: Mark = Mark::ALONE;

/// Makes a bundle.
pub(crate) fn run(args: &BundleArgs) -> Result<()> {
    if args.out == Path::new("-") {
        return Err(WrongUsage("--out -: expected a file (one called - is ./-)".into()).into());
    }
    let blob = args.model.blob()?;
    let model = blob.open(false)?;
    let options = options(args, &model)?;
    let own = || env::current_exe().map_err(|error| format!("this program's own file: {error}"));
    let program = args.program.clone().map_or_else(own, Ok)?;
    let len =
        write::bundle::make(&program, &blob.path, model.storage().bytes(), &options, &args.out, args.force)?;
    tell(&format!("{}: {:.1} MB, the program with its model", args.out.display(), len as f64 / 1e6));
    Ok(())
}

/// With what the bundle runs, which is looked at here as it will be there.
fn options(args: &BundleArgs, model: &Model) -> Result<Vec<String>> {
    let has_template = model.chat_template()?.is_some();
    if args.system.is_some() && !has_template {
        return Err("--system: expected a model with a chat template, found none in it".into());
    }
    let mut options = Vec::new();
    if has_template && !args.no_chat {
        options.push("--chat".to_owned());
    }
    if let Some(text) = &args.system {
        options.extend(["--system".to_owned(), text.clone()]);
    }
    options.extend_from_slice(&args.options);
    let own = Own { path: args.out.clone(), options };
    let parsed = own.parse([args.out.clone().into()])?.generate;
    check(&parsed, model, has_template)?;
    Ok(own.options)
}

/// Refuses a prompt that all runs would have, and options with which no run could work.
fn check(given: &GenerateArgs, model: &Model, has_template: bool) -> Result<()> {
    let wrong = |found: &str| Err(WrongUsage(format!("expected options after --, found {found}")).into());
    if let Some(word) = given.prompt.text.first() {
        return wrong(&format!("a prompt: {word}"));
    }
    if given.prompt.prompt_file.is_some() {
        return wrong("a prompt: --prompt-file");
    }
    if given.dtype.mix().is_some() {
        return wrong("--dtype, which belongs before it");
    }
    if given.prompt.chat && !has_template {
        return wrong("--chat for a model without a chat template");
    }
    let sampling = given.answer.sampling.sampling(model, &Defaults::CONTINUATION);
    Sampler::new(sampling, model.config().vocab_size)?;
    Ok(())
}

/// The bundle that this program is one of.
pub(crate) struct Own {
    path: PathBuf,
    options: Vec<String>,
}

impl Own {
    /// None if it is one of none.
    pub(crate) fn find() -> Result<Option<Own>> {
        let Some(len) = MARK.bundle_len() else { return Ok(None) };
        let path = own_path()?;
        match Bundle::find(&path)? {
            Some(bundle) => Ok(Some(Own { path, options: bundle.options })),
            None => Err(Bundle::is_gone(&path, len).into()),
        }
    }

    /// What its user's arguments mean: those of `smolrun MODEL`, without MODEL, and after its own options.
    pub(crate) fn parse(
        &self,
        args: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Args, clap::Error> {
        let mut args = args.into_iter();
        let name = args.next().unwrap_or_default();
        let own = self.options.iter().map(OsString::from);
        let all = [name.clone(), self.path.clone().into()].into_iter().chain(own).chain(args);
        parse(command(&name), all)
    }
}

/// Where this program lies: the system says so, or where it does not, as in a chroot without /proc, its caller.
fn own_path() -> Result<PathBuf> {
    let called = || env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
    let path = env::current_exe().or_else(|error: io::Error| called().ok_or(error));
    path.map_err(|error| format!("this program's own file: {error}; call it by its path").into())
}

/// The command line of a bundle that is called `name`.
fn command(name: &OsStr) -> clap::Command {
    let name = Path::new(name).file_name().unwrap_or(name).to_string_lossy().into_owned();
    Args::command()
        .override_usage(format!("{name} [OPTIONS] [PROMPT]..."))
        .bin_name(name)
        .about("Runs the model in this file")
        .long_about("Runs the model in this file, with smolrun.")
        .after_help(None::<&str>)
        .args_override_self(true)
        .disable_help_subcommand(true)
        .mut_args(
            |arg| if ["model", "dtype"].contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg },
        )
        .mut_subcommands(|subcommand| subcommand.hide(true))
}
