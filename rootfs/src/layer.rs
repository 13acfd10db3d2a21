//! The kernel layer: our driver of interpreters, and the packages that its contexts need, as one directory.
//!
//! `layer.toml` beside the driver names the packages, `layer.lock` pins their wheels by hash. All of them run with any
//! Python of the templates, so one layer serves all; its byte code is made per image ([`crate::compile_kernel`]).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};
use crate::hash;
use crate::progress::Progress;
use crate::run::Log;
use crate::seal;
use crate::store;
use crate::template::Python;
use crate::wheels::{self, Wanted};

/// The command that makes the lock.
const RELOCK: &str = "brig template layer --lock";

/// In a layer: the hash over all that it was made from.
const RECORD: &str = ".inputs";

/// In a layer: [`LayerOptions::library`].
const LIBRARY: &str = "libbrig_fork.so";

/// Raised when the same inputs lead to another layer.
const BUILDER: &str = "1";

/// What to put together, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerOptions {
    /// The driver's directory: `kernel.py`, `brig_kernel`, `layer.toml`, `layer.lock`.
    pub source: PathBuf,
    /// The layer. What is there is replaced, unless it was made of the same inputs.
    pub target: PathBuf,
    /// Where wheels are kept, so that the network is needed once.
    pub wheels: PathBuf,
    /// The library that forks interpreters into sessions (crate brig-fork). Without it there are no zygotes.
    pub library: Option<PathBuf>,
}

/// Puts the layer together; false if it was there already.
///
/// Everything in it has one time, modes 0644 and 0755, and the owner who calls: two layers of the same inputs are
/// byte-identical. An interrupted call leaves the old layer as it is.
///
/// Errors: [`Error::Invalid`] when the lock is not that of `layer.toml`, [`Error::Step`] when a wheel can't be had.
pub fn build_layer(options: &LayerOptions, progress: &Progress) -> Result<bool> {
    let python = read_python(&options.source)?;
    let wanted = Wanted::pure(&python, &options.source, RELOCK);
    let lock = wheels::read_lock(wanted)?;
    let modules = modules(&options.source)?;
    let parts: Vec<PathBuf> = modules.iter().chain(&options.library).cloned().collect();
    let inputs = inputs(&parts, &lock)?;
    if fs::read_to_string(options.target.join(RECORD)).is_ok_and(|made_of| made_of == inputs) {
        return Ok(false);
    }
    let name = options.target.file_name().unwrap_or_default().to_string_lossy();
    let part = options.target.with_file_name(format!(".{name}.part"));
    remove(&part)?;
    fs::create_dir_all(part.join("brig_kernel")).doing("make", &part)?;
    for module in &modules {
        let copy = part.join(module.strip_prefix(&options.source).unwrap_or(module));
        fs::copy(module, &copy).doing("copy", module)?;
    }
    if let Some(library) = &options.library {
        fs::copy(library, part.join(LIBRARY)).doing("copy", library)?;
    }
    let mut log = Log::create(&part.with_file_name(format!(".{name}.log")))?;
    progress.step("packages of the kernel layer", || {
        let packages = part.join("packages");
        wheels::install(wanted, &packages, Some(&options.wheels), &mut log, progress)
    })?;
    fs::write(part.join(RECORD), inputs).doing("write", &part.join(RECORD))?;
    settle(&part)?;
    replace(&options.target, &part)?;
    Ok(true)
}

/// Looks up the wheels of `layer.toml`, and writes `layer.lock`.
pub fn lock_layer(source: &Path, progress: &Progress) -> Result<PathBuf> {
    let python = read_python(source)?;
    let wanted = Wanted::pure(&python, source, RELOCK);
    let Some(file) = wanted.lock_file() else {
        return Err(Error::invalid(
            &source.join("layer.toml"),
            "lock: missing, there is nothing to lock",
        ));
    };
    let scratch = tempfile::tempdir().doing("make a folder in", &std::env::temp_dir())?;
    let mut log = Log::create(&source.join(".layer.log"))?;
    let text = progress.step("resolve", || {
        wheels::resolve(wanted, scratch.path(), &mut log, progress)
    })?;
    fs::write(&file, text).doing("write", &file)?;
    remove(&source.join(".layer.log"))?;
    Ok(file)
}

fn read_python(source: &Path) -> Result<Python> {
    let file = source.join("layer.toml");
    let text = fs::read_to_string(&file).doing("read", &file)?;
    toml::from_str(&text).map_err(|error| Error::invalid(&file, error.to_string()))
}

/// The driver's own files, sorted.
fn modules(source: &Path) -> Result<Vec<PathBuf>> {
    let mut modules = vec![source.join("kernel.py")];
    let folder = source.join("brig_kernel");
    for entry in fs::read_dir(&folder).doing("list", &folder)? {
        modules.push(entry.doing("list", &folder)?.path());
    }
    modules.retain(|module| module.extension().is_some_and(|end| end == "py"));
    modules.sort();
    Ok(modules)
}

fn inputs(modules: &[PathBuf], lock: &str) -> Result<String> {
    let mut parts = vec![BUILDER.as_bytes().to_vec(), lock.as_bytes().to_vec()];
    for module in modules {
        parts.push(module.file_name().unwrap_or_default().as_encoded_bytes().to_vec());
        parts.push(fs::read(module).doing("read", module)?);
    }
    Ok(hash::parts(parts.iter().map(Vec::as_slice)))
}

/// Modes and times that are the same each time.
fn settle(layer: &Path) -> Result<()> {
    for path in hash::walk(layer)?.iter().chain([&layer.to_owned()]) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).doing("set the mode of", path)?;
    }
    seal::set_times(layer)
}

/// A jailer that has the old layer mounted keeps it.
fn replace(target: &Path, part: &Path) -> Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let old = target.with_file_name(format!(".{name}.old"));
    remove(&old)?;
    if target.exists() {
        fs::rename(target, &old).doing("move away", target)?;
    }
    fs::rename(part, target).doing("put in place", target)?;
    remove(&old)?;
    remove(&target.with_file_name(format!(".{name}.log")))
}

fn remove(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => store::remove_tree(path),
        Ok(_) => fs::remove_file(path).doing("remove", path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{LayerOptions, build_layer, modules};
    use crate::progress::Progress;

    fn shipped() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernel"))
    }

    /// A driver that needs no packages.
    fn driver(folder: &Path) -> LayerOptions {
        let source = folder.join("source");
        fs::create_dir_all(source.join("brig_kernel/__pycache__")).unwrap();
        fs::write(source.join("kernel.py"), "print(1)\n").unwrap();
        fs::write(source.join("brig_kernel/__init__.py"), "").unwrap();
        fs::write(source.join("brig_kernel/__pycache__/__init__.cpython-311.pyc"), "").unwrap();
        fs::write(source.join("layer.toml"), "version = \"3.11\"\n").unwrap();
        LayerOptions {
            source,
            target: folder.join("layer"),
            wheels: folder.join("wheels"),
            library: None,
        }
    }

    #[test]
    fn a_layer_of_the_same_inputs_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let options = driver(folder.path());
        assert!(build_layer(&options, &Progress::quiet()).unwrap());
        fs::write(options.target.join("brig_kernel/compiled"), "").unwrap();
        assert!(!build_layer(&options, &Progress::quiet()).unwrap());
        assert!(options.target.join("brig_kernel/compiled").exists());
        fs::write(options.source.join("kernel.py"), "print(2)\n").unwrap();
        assert!(build_layer(&options, &Progress::quiet()).unwrap());
        assert!(!options.target.join("brig_kernel/compiled").exists());
        let left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn byte_code_of_the_source_stays_behind() {
        let folder = tempfile::tempdir().unwrap();
        let options = driver(folder.path());
        build_layer(&options, &Progress::quiet()).unwrap();
        assert!(!options.target.join("brig_kernel/__pycache__").exists());
    }

    #[test]
    fn a_lock_of_other_requirements_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = driver(folder.path());
        fs::write(
            options.source.join("layer.toml"),
            "version = \"3.11\"\nrequirements = [\"six==1.17.0\"]\nlock = \"layer.lock\"\n",
        )
        .unwrap();
        fs::write(options.source.join("layer.lock"), "# requirements 0\n").unwrap();
        let error = build_layer(&options, &Progress::quiet()).unwrap_err().to_string();
        assert!(
            error.ends_with("layer.lock: made for other requirements; run: brig template layer --lock"),
            "{error}"
        );
        assert!(!options.target.exists());
    }

    #[test]
    fn the_shipped_driver_has_its_modules() {
        let names: Vec<_> = modules(shipped()).unwrap();
        assert!(
            names.iter().any(|name| name.ends_with("brig_kernel/context.py")),
            "{names:?}"
        );
    }
}
