//! Building an image: the list of steps, and when none of them is needed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::compile;
use crate::debian::{self, Deb};
use crate::error::{Doing, Error, Result};
use crate::hash::{self, TreeHash};
use crate::host;
use crate::progress::Progress;
use crate::run::{self, Log};
use crate::seal;
use crate::settle;
use crate::store::{self, Image, Package, Record, Store, Stored};
use crate::template::Template;
use crate::wheels::{self, Wanted};

/// Raised when the same inputs lead to another tree.
const BUILDER: &str = "1";

/// What to build, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOptions {
    /// Name of a template, or path of its file.
    pub template: String,
    /// Folders with template files, the first that has a name wins.
    pub templates: Vec<PathBuf>,
    /// The store.
    pub images: PathBuf,
    /// The Python kernel layer; its modules are compiled for the template's Python. None: left alone.
    pub kernel: Option<PathBuf>,
    /// A `debs.lock` that has to hold for all Debian packages.
    pub locked: Option<PathBuf>,
    /// Builds even if an image of the same inputs is there.
    pub rebuild: bool,
}

/// An image that is now in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    pub stored: Stored,
    /// Whether it was there before.
    pub cached: bool,
}

/// Builds a template's image, or finds it built.
///
/// Another build in the same store is waited for. An interrupted build leaves a folder that the next one removes.
///
/// Errors: all of [`Error`]; nothing is changed in the store then.
pub fn build(options: &BuildOptions, progress: &Progress) -> Result<Built> {
    let template = Template::find(&options.template, &options.templates)?;
    let locked = options.locked.as_deref().map(debian::read_lock).transpose()?;
    let inputs = inputs(&template, locked.as_deref())?;
    let store = Store::new(&options.images);

    if let Some(built) = find_built(&store, &template, &inputs, options, progress)? {
        return Ok(built);
    }
    host::check(template.python.lock.is_some())?;
    let _lock = store.lock(progress)?;
    // The build that was waited for may have been this one.
    if let Some(built) = find_built(&store, &template, &inputs, options, progress)? {
        return Ok(built);
    }
    store.sweep()?;
    let log = Log::create(&store.log_file(&template.name))?;
    let work = Work {
        folder: store.unfinished(&template.name),
    };
    fs::create_dir(&work.folder).doing("make", &work.folder)?;

    progress.say(&format!(
        "building template {}: {}",
        template.name, template.description
    ));
    let mut site = Site {
        template: &template,
        options,
        log,
        progress,
        tree: work.folder.join("tree"),
    };
    let debs = site.raise(locked.as_deref())?;
    let tree_hash = site.seal()?;
    let image = site.describe(&work.folder, debs, &tree_hash, &inputs)?;
    store.adopt(&work.folder, &image)?;
    Ok(Built {
        stored: store.find(&template.name)?,
        cached: false,
    })
}

/// Looks up what the template's Python requirements need now, and writes its lock file.
pub fn lock(template: &str, templates: &[PathBuf], progress: &Progress) -> Result<PathBuf> {
    let template = Template::find(template, templates)?;
    let Some(name) = &template.python.lock else {
        let file = template.beside(&format!("{}.toml", template.name));
        return Err(Error::invalid(&file, "python.lock: missing, there is nothing to lock"));
    };
    let scratch = tempfile::tempdir().doing("make a folder in", &std::env::temp_dir())?;
    let mut log = Log::create(&scratch.path().join("lock.log"))?;
    let resolved = progress.step("resolve", || {
        let relock = wheels::relock(&template);
        wheels::resolve(Wanted::of(&template, &relock), scratch.path(), &mut log, progress)
    });
    let text = match resolved {
        Ok(text) => text,
        Err(error) => {
            // The error names the log in it.
            let _kept = scratch.keep();
            return Err(error);
        }
    };
    let file = template.beside(name);
    fs::write(&file, text).doing("write", &file)?;
    Ok(file)
}

/// The folder of a build; removed unless it became an image.
struct Work {
    folder: PathBuf,
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.folder.exists() {
            // What can't be removed now is removed by the next build, which says why if it can't either.
            let _ = store::remove_tree(&self.folder);
        }
    }
}

/// A tree being built.
struct Site<'a> {
    template: &'a Template,
    options: &'a BuildOptions,
    log: Log,
    progress: &'a Progress,
    tree: PathBuf,
}

impl Site<'_> {
    /// From nothing to a tree with everything in it.
    fn raise(&mut self, locked: Option<&[Deb]>) -> Result<Vec<Deb>> {
        let (template, progress, tree) = (self.template, self.progress, self.tree.as_path());
        let log = &mut self.log;
        progress.step("Debian packages", || {
            debian::install(template, locked, tree, log, progress)
        })?;
        let debs = debian::installed(tree)?;
        if let (Some(file), Some(locked)) = (&self.options.locked, locked) {
            debian::demand(file, locked, &debs)?;
        }
        if template.python.lock.is_some() {
            let relock = wheels::relock(template);
            let site = tree.join(format!("usr/local/lib/python{}/dist-packages", template.python.version));
            progress.step("Python packages", || {
                wheels::install(Wanted::of(template, &relock), &site, None, log, progress)
            })?;
        }
        settle::furnish(template, tree)?;
        if template.prepare.is_some() {
            progress.step("prepare", || prepare(template, tree, log, progress))?;
        }
        settle::take_back(tree)?;
        progress.step("byte code", || compile::tree(template, tree, log, progress))?;
        if let (Some(kernel), Some(interpreter)) = (&self.options.kernel, &template.interpreter) {
            compile::kernel(tree, interpreter, kernel, log, progress)?;
        }
        Ok(debs)
    }

    /// Nothing that differs from build to build, nothing that gives rights; then the hash.
    fn seal(&self) -> Result<TreeHash> {
        let tree = self.tree.as_path();
        self.progress.step("clean", || {
            settle::clean(tree)?;
            seal::strip_privileges(tree)?;
            seal::prove_no_privileges(tree)?;
            seal::set_times(tree)
        })?;
        self.progress.step("hash", || hash::tree(tree))
    }

    /// Writes the files that lie beside the tree, and everything to the disk.
    fn describe(&self, folder: &Path, debs: Vec<Deb>, tree: &TreeHash, inputs: &str) -> Result<Image> {
        let template = self.template;
        let mut packages = wheels::packages(&read_lock(template)?);
        fs::write(folder.join("debs.lock"), debian::lock_text(&debs)).doing("write", &folder.join("debs.lock"))?;
        packages.extend(debs.into_iter().map(|deb| Package {
            name: deb.name,
            version: deb.version,
        }));
        let image = Image {
            name: template.name.clone(),
            hash: tree.hex.clone(),
            interpreter: template.interpreter.clone(),
            environment: template.environment.clone(),
            packages,
            warm_up: (!template.warm_up.is_empty()).then(|| template.warm_up.join("\n")),
            imports: template.imports.clone(),
        };
        store::write_json(&folder.join("image.json"), &image)?;
        let record = Record {
            inputs: inputs.to_owned(),
            builder: builder(),
            bytes: tree.bytes,
        };
        store::write_json(&folder.join("build.json"), &record)?;
        let handle = fs::File::open(folder).doing("open", folder)?;
        rustix::fs::syncfs(&handle).doing("write to disk", folder)?;
        Ok(image)
    }
}

fn prepare(template: &Template, tree: &Path, log: &mut Log, progress: &Progress) -> Result<()> {
    let (Some(file), Some(interpreter)) = (&template.prepare, &template.interpreter) else {
        return Ok(());
    };
    let file = template.beside(file);
    let program = fs::read_to_string(&file).doing("read", &file)?;
    let mut command = run::inside_as_user(tree, &[interpreter, "-I", "-B", "-c", &program]);
    log.run("prepare", &mut command, progress)
}

/// The current image of a template if it was made from the same inputs, with the kernel layer compiled for it.
fn find_built(
    store: &Store,
    template: &Template,
    inputs: &str,
    options: &BuildOptions,
    progress: &Progress,
) -> Result<Option<Built>> {
    let is_it = |stored: &Stored| stored.current && stored.image.name == template.name && stored.inputs == inputs;
    let Some(stored) = store
        .list()?
        .into_iter()
        .find(|stored| is_it(stored) && !options.rebuild)
    else {
        return Ok(None);
    };
    if let Some(kernel) = &options.kernel {
        // Without root the layer is compiled at each start; it works.
        if rustix::process::geteuid().is_root() && !compile::is_kernel_compiled(kernel, &template.python.version)? {
            compile::compile_kernel(&stored, kernel, progress)?;
        }
    }
    Ok(Some(Built { stored, cached: true }))
}

fn read_lock(template: &Template) -> Result<String> {
    wheels::read_lock(Wanted::of(template, &wheels::relock(template)))
}

fn builder() -> String {
    format!("{} {BUILDER}", env!("CARGO_PKG_VERSION"))
}

/// Hash over all that decides what is built: the template with what it extends, the files it names, the locks, the
/// builder, the machine.
fn inputs(template: &Template, locked: Option<&[Deb]>) -> Result<String> {
    let description = serde_json::to_vec(template).map_err(|e| Error::invalid(&template.folder, e.to_string()))?;
    let mut parts = vec![
        builder().into_bytes(),
        std::env::consts::ARCH.as_bytes().to_vec(),
        description,
        read_lock(template)?.into_bytes(),
        debian::lock_text(locked.unwrap_or_default()).into_bytes(),
    ];
    for name in template.files.values().chain(&template.prepare) {
        let file = template.beside(name);
        parts.push(fs::read(&file).doing("read", &file)?);
    }
    Ok(hash::parts(parts.iter().map(Vec::as_slice)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{BuildOptions, inputs};
    use crate::debian::Deb;
    use crate::progress::Progress;
    use crate::template::Template;

    fn copied_template() -> (tempfile::TempDir, Template) {
        let folder = tempfile::tempdir().unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        for name in ["base.toml", "sitecustomize.py"] {
            fs::copy(shipped.join(name), folder.path().join(name)).unwrap();
        }
        let template = Template::read(&folder.path().join("base.toml")).unwrap();
        (folder, template)
    }

    #[test]
    fn the_same_inputs_have_the_same_key_wherever_they_lie() {
        let (_one, one) = copied_template();
        let (_two, two) = copied_template();
        assert_eq!(inputs(&one, None).unwrap(), inputs(&two, None).unwrap());
    }

    #[test]
    fn a_changed_file_of_the_template_changes_the_key() {
        let (folder, template) = copied_template();
        let before = inputs(&template, None).unwrap();
        fs::write(folder.path().join("sitecustomize.py"), "").unwrap();
        assert_ne!(inputs(&template, None).unwrap(), before);
    }

    #[test]
    fn a_changed_environment_changes_the_key() {
        let (_folder, mut template) = copied_template();
        let before = inputs(&template, None).unwrap();
        template.environment.insert("A".into(), "b".into());
        assert_ne!(inputs(&template, None).unwrap(), before);
    }

    #[test]
    fn a_lock_of_debian_packages_changes_the_key() {
        let (_folder, template) = copied_template();
        let deb = Deb {
            name: "bash".into(),
            version: "1".into(),
            sha256: "a".repeat(64),
        };
        assert_ne!(
            inputs(&template, Some(&[deb])).unwrap(),
            inputs(&template, None).unwrap()
        );
    }

    #[test]
    fn an_unknown_template_touches_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let options = BuildOptions {
            template: "nope".into(),
            templates: Vec::new(),
            images: folder.path().join("images"),
            kernel: None,
            locked: None,
            rebuild: false,
        };
        let error = super::build(&options, &Progress::quiet()).unwrap_err().to_string();
        assert_eq!(error, "unknown template \"nope\"; there are: none");
        assert!(!options.images.exists());
    }
}
