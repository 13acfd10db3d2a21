//! Byte code of Python modules, made by the Python that will use it.

use std::fs;
use std::path::Path;

use crate::error::Result;
use crate::hash;
use crate::progress::Progress;
use crate::run::{self, Log};
use crate::settle;
use crate::store::Stored;
use crate::template::Template;

/// Runs in a tree.
const COMPILE: &str = include_str!("compile.py");

/// Compiles the kernel layer for the Python of an image, so that its start costs no compilation. Needs root.
pub fn compile_kernel(image: &Stored, kernel: &Path, progress: &Progress) -> Result<()> {
    let Some(interpreter) = &image.image.interpreter else {
        return Ok(());
    };
    let log_path = image.folder.with_file_name(".logs").join("kernel.log");
    let mut log = Log::create(&log_path)?;
    self::kernel(&image.folder.join("tree"), interpreter, kernel, &mut log, progress)
}

/// Compiles the whole library of a tree.
pub(crate) fn tree(template: &Template, tree: &Path, log: &mut Log, progress: &Progress) -> Result<()> {
    settle::drop_bytecode(tree)?;
    let Some(interpreter) = &template.interpreter else {
        return Ok(());
    };
    let library = format!("/usr/lib/python{}", template.python.version);
    let site = format!("/usr/local/lib/python{}/dist-packages", template.python.version);
    let settings = format!("/etc/python{}", template.python.version);
    let folders = [&library, "/usr/lib/python3/dist-packages", &site, &settings];
    let command = [
        &[interpreter.as_str(), "-B", "-c", COMPILE, "unchecked"],
        folders.as_slice(),
    ]
    .concat();
    log.run("compile", &mut run::inside(tree, &command), progress)
}

/// Compiles the kernel layer with the Python of a tree: our modules, which may change, and the locked packages.
pub(crate) fn kernel(tree: &Path, interpreter: &str, kernel: &Path, log: &mut Log, progress: &Progress) -> Result<()> {
    for (mode, folder) in [("checked", "brig_kernel"), ("unchecked", "packages")] {
        let place = format!("/usr/lib/brig/{folder}");
        let command = [interpreter, "-B", "-c", COMPILE, mode, &place];
        let mut command = run::inside_with(tree, kernel, "usr/lib/brig", &command);
        log.run("compile the kernel layer", &mut command, progress)?;
    }
    Ok(())
}

/// Whether each module of the kernel layer has byte code for a Python that is not older than the module.
pub(crate) fn is_kernel_compiled(kernel: &Path, version: &str) -> Result<bool> {
    let tag = format!("cpython-{}", version.replace('.', ""));
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let mut modules = hash::walk(&kernel.join("brig_kernel"))?;
    let packages = kernel.join("packages");
    if packages.is_dir() {
        modules.extend(hash::walk(&packages)?);
    }
    let mut modules = modules
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "py"))
        // Not compiled, see compile.py.
        .filter(|path| !path.components().any(|part| part.as_os_str() == "tests"));
    Ok(modules.all(|module| {
        let name = module.file_stem().unwrap_or_default().to_string_lossy();
        let compiled = module.with_file_name("__pycache__").join(format!("{name}.{tag}.pyc"));
        modified(&compiled) >= modified(module)
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::is_kernel_compiled;

    #[test]
    fn a_kernel_module_newer_than_its_byte_code_is_not_compiled() {
        let kernel = tempfile::tempdir().unwrap();
        let package = kernel.path().join("brig_kernel");
        fs::create_dir_all(package.join("__pycache__")).unwrap();
        fs::write(package.join("x.py"), "").unwrap();
        assert!(!is_kernel_compiled(kernel.path(), "3.11").unwrap());
        fs::write(package.join("__pycache__/x.cpython-311.pyc"), "").unwrap();
        assert!(is_kernel_compiled(kernel.path(), "3.11").unwrap());
        assert!(!is_kernel_compiled(kernel.path(), "3.12").unwrap());
    }
}
