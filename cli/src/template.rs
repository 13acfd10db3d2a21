//! `brig template`: builds the file systems that jobs see, and looks after them. Needs no daemon.

use std::path::{Path, PathBuf};

use brig_rootfs::{BuildOptions, Built, DEFAULT_IMAGES, DEFAULT_WHEELS, Error, LayerOptions, Progress, Store, Stored};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};
use crate::output::{amount, escape};

/// Where packages put the Python kernel layer.
const INSTALLED_KERNEL: &str = "/usr/lib/brig/kernel";

/// Builds and shows templates: the file systems that jobs see.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Builds an image of a template, if there is none of the same inputs yet. Needs root.
    Build(BuildArguments),
    /// Looks up what a template's Python packages need now, and writes that with its hashes into the lock file.
    Lock(LockArguments),
    /// Puts the kernel layer together: the driver of interpreters and the packages that contexts need.
    Layer(LayerArguments),
    /// Lists the images of this host.
    List(Images),
    /// Shows an image with its packages, as JSON.
    Show {
        /// Name, or NAME@HASH.
        name: String,
        #[command(flatten)]
        images: Images,
    },
    /// Removes an image, or all of a name. What a running session uses must stay.
    Remove {
        /// Name for all of them, or NAME@HASH for one.
        name: String,
        #[command(flatten)]
        images: Images,
    },
}

/// Where images lie.
#[derive(Debug, Clone, Args)]
pub(crate) struct Images {
    /// Directory of images.
    #[arg(long, value_name = "DIR", env = "BRIG_IMAGES", hide_env_values = true, default_value = DEFAULT_IMAGES)]
    images: PathBuf,
}

/// Where template files lie.
#[derive(Debug, Clone, Args)]
pub(crate) struct Templates {
    /// Directories of template files, separated by colons; the first that has the name is taken.
    #[arg(
        long,
        value_name = "DIR",
        env = "BRIG_TEMPLATES",
        hide_env_values = true,
        value_delimiter = ':',
        default_value = "/etc/brig/templates:/usr/share/brig/templates"
    )]
    templates: Vec<PathBuf>,
}

/// What to lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct LockArguments {
    /// Name of a template, or path of its file.
    #[arg(value_name = "NAME|FILE")]
    template: String,

    #[command(flatten)]
    templates: Templates,
}

/// Which layer to put together.
#[derive(Debug, Clone, Args)]
pub(crate) struct LayerArguments {
    /// Directory of the layer; what is there is replaced.
    #[arg(value_name = "DIR", required_unless_present = "lock")]
    target: Option<PathBuf>,

    /// Directory of the driver, with layer.toml and layer.lock.
    #[arg(long, value_name = "DIR")]
    source: PathBuf,

    /// Directory where wheels are kept.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_WHEELS)]
    wheels: PathBuf,

    /// The library that forks interpreters into sessions (libbrig_fork.so); without it each session starts its own.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Looks up the wheels of layer.toml and writes layer.lock instead.
    #[arg(long, conflicts_with = "target")]
    lock: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,
}

/// What to build.
#[derive(Debug, Clone, Args)]
pub(crate) struct BuildArguments {
    /// Name of a template, or path of its file.
    #[arg(value_name = "NAME|FILE")]
    template: String,

    #[command(flatten)]
    templates: Templates,

    #[command(flatten)]
    images: Images,

    /// Python kernel layer to compile for the template's Python; the installed one if absent.
    #[arg(long, value_name = "DIR", env = "BRIG_KERNEL", hide_env_values = true)]
    kernel: Option<PathBuf>,

    /// List of Debian packages with hashes, all of which must hold.
    #[arg(long, value_name = "FILE")]
    locked: Option<PathBuf>,

    /// Builds even if there is an image of the same inputs.
    #[arg(long)]
    rebuild: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs a command about templates.
pub(crate) fn template(command: &TemplateCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    match command {
        TemplateCommand::Build(arguments) => build(arguments, screen),
        TemplateCommand::Lock(arguments) => {
            let file = brig_rootfs::lock(&arguments.template, &arguments.templates.templates, &Progress::new())
                .map_err(|error| failure(&error))?;
            screen.out.text(&format!("{}\n", escape::line(&shown(&file))));
            Ok(Exit::Success)
        }
        TemplateCommand::Layer(arguments) => layer(arguments, screen),
        TemplateCommand::List(images) => {
            let stored = images.store().list().map_err(|error| failure(&error))?;
            let text = list(&stored, screen.out.style());
            screen.out.text(&text);
            Ok(Exit::Success)
        }
        TemplateCommand::Show { name, images } => {
            let Stored {
                image,
                folder,
                current,
                bytes,
                ..
            } = images.store().find(name).map_err(|error| failure(&error))?;
            let mut document =
                json!({"template": image.id(), "folder": folder, "current": current, "size_bytes": bytes});
            document["image"] = json!(image);
            screen.out.json(&document);
            Ok(Exit::Success)
        }
        TemplateCommand::Remove { name, images } => {
            let removed = images
                .store()
                .remove(name, &Progress::quiet())
                .map_err(|error| failure(&error))?;
            for stored in removed {
                screen.out.text(&format!("removed {}\n", stored.image.id()));
            }
            Ok(Exit::Success)
        }
    }
}

impl Images {
    fn store(&self) -> Store {
        Store::new(&self.images)
    }
}

fn build(arguments: &BuildArguments, screen: &mut Screen) -> Result<Exit, Failure> {
    let installed = || Some(PathBuf::from(INSTALLED_KERNEL)).filter(|kernel| kernel.is_dir());
    let options = BuildOptions {
        template: arguments.template.clone(),
        templates: arguments.templates.templates.clone(),
        images: arguments.images.images.clone(),
        kernel: arguments.kernel.clone().or_else(installed),
        locked: arguments.locked.clone(),
        rebuild: arguments.rebuild,
    };
    let progress = if arguments.quiet {
        Progress::quiet()
    } else {
        Progress::new()
    };
    let built = brig_rootfs::build(&options, &progress).map_err(|error| failure(&error))?;
    drop(progress);
    if !arguments.quiet {
        screen.err.text(&told(&built));
    }
    screen.out.text(&format!("{}\n", built.stored.image.id()));
    Ok(Exit::Success)
}

fn layer(arguments: &LayerArguments, screen: &mut Screen) -> Result<Exit, Failure> {
    let progress = if arguments.quiet {
        Progress::quiet()
    } else {
        Progress::new()
    };
    let made = match &arguments.target {
        None => brig_rootfs::lock_layer(&arguments.source, &progress),
        Some(target) => {
            let options = LayerOptions {
                source: arguments.source.clone(),
                target: target.clone(),
                wheels: arguments.wheels.clone(),
                library: arguments.library.clone(),
            };
            brig_rootfs::build_layer(&options, &progress).map(|_| target.clone())
        }
    };
    drop(progress);
    let made = made.map_err(|error| failure(&error))?;
    screen.out.text(&format!("{}\n", escape::line(&shown(&made))));
    Ok(Exit::Success)
}

fn told(built: &Built) -> String {
    let what = if built.cached { "there already" } else { "built" };
    format!(
        "{what}: {}, {}\n",
        escape::line(&shown(&built.stored.folder)),
        amount::size(built.stored.bytes)
    )
}

fn list(stored: &[Stored], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = stored
        .iter()
        .map(|stored| {
            let current = if stored.current {
                Cell::painted("current", Style::green)
            } else {
                Cell::new("")
            };
            let interpreter = stored.image.interpreter.as_deref().unwrap_or("none");
            let packages = stored.image.packages.len().to_string();
            let texts = [
                stored.image.id(),
                amount::size(stored.bytes),
                interpreter.to_owned(),
                packages,
            ];
            texts
                .into_iter()
                .map(|text| Cell::new(escape::line(&text)))
                .chain([current])
                .collect()
        })
        .collect();
    if rows.is_empty() {
        return "no image yet; build one: brig template build data\n".to_owned();
    }
    table::render(&["template", "size", "interpreter", "packages", "state"], &rows, style)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::UnknownTemplate { .. } | Error::UnknownImage { .. } => Failure::usage("template", error.to_string()),
        Error::Invalid { .. } => Failure::new(Exit::Usage, error.to_string()),
        Error::Host { problem, mend } => Failure::new(Exit::Configuration, problem).hint(mend),
        Error::Locked { .. } | Error::Privileged { .. } => Failure::new(Exit::Error, error.to_string()),
        Error::Step { step, message, log } => {
            let message = format!("build step {step:?} failed: {message}");
            Failure::new(Exit::Failed, message).hint(format!("the whole log is in {}", shown(log)))
        }
        error => Failure::new(Exit::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::screen::tests::Written;

    #[test]
    fn an_empty_store_says_how_to_fill_it() {
        assert!(list(&[], Style::PLAIN).contains("brig template build data"));
    }

    #[test]
    fn an_unknown_image_is_a_usage_error() {
        let directory = tempfile::tempdir().unwrap();
        let command = TemplateCommand::Show {
            name: "nothing".to_owned(),
            images: Images {
                images: directory.path().to_path_buf(),
            },
        };
        let mut screen = Screen {
            out: Written::default().sink(false),
            err: Written::default().sink(false),
        };
        assert_eq!(template(&command, &mut screen).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn what_the_host_lacks_comes_with_its_mend() {
        let error = Error::Host {
            problem: "mmdebstrap is not installed".into(),
            mend: "apt-get install mmdebstrap".into(),
        };
        assert_eq!(
            failure(&error).render(Style::PLAIN),
            "error: mmdebstrap is not installed\nhint: apt-get install mmdebstrap\n"
        );
    }
}
