//! What sessions take that wait for a request.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use brig_tests::host::Places;
use serde_json::Value;
use tempfile::TempDir;

use crate::memory::{own, slab};
use crate::ours::{Ours, Scale};
use crate::samples::{Measurement, Of, Unit, mebibytes};
use crate::works::PRINT;

/// Until what was started is at rest.
const REST: Duration = Duration::from_secs(1);
/// What is asked for of the mean, in MiB: of a session that has imported, and of one that has run code besides.
const COLD: f64 = 4.0;
const WARM: f64 = 8.0;

/// Measures sessions of the template `data` that have imported what it names, and some that have run its line too.
pub(crate) fn waiting(count: usize, left_out: &mut Vec<String>) -> anyhow::Result<Vec<Measurement>> {
    let images = Places::find().images;
    let line = warm_up(&images)?;
    let mut measured = Vec::new();
    {
        let images = without_warm_up(&images)?;
        measured.extend(measure(count, images.path().to_owned(), "cold", COLD)?);
    }
    if line.contains("pandas") {
        measured.extend(measure(count, images, "warmed by a pandas line", WARM)?);
    } else {
        left_out.push("waiting session warmed by a pandas line: the template data has none".to_owned());
    }
    Ok(measured)
}

fn measure(count: usize, images: PathBuf, which: &str, most: f64) -> anyhow::Result<Vec<Measurement>> {
    let of = |what: &str| Measurement::new(format!("waiting session, {which}, {what}"), Unit::Mebibytes);
    let mut processes = of("memory of its processes");
    let mut kernel = of("slab of the kernel");
    let mut mean = of(&format!("both, mean of {count}")).goal(Of::Median, most);

    let ours = Ours::start(Scale {
        sessions: 4 * count + 16,
        waiting: count,
        running: count + 8,
        images,
        template: "",
    })?;
    // So that what the first sessions leave in the kernel's caches is there before.
    ours.fresh(PRINT)?;
    std::thread::sleep(REST);
    let before = slab()?;
    ours.ask_ahead(PRINT, count)?;
    let sessions = only_waiting(&ours, count)?;
    let slab_of_each = mebibytes(slab()?.saturating_sub(before) / count.max(1) as u64);

    for (pids, _) in ours.groups().memory_of(&sessions)?.into_values() {
        let sum: anyhow::Result<u64> = pids.into_iter().map(own).sum();
        processes.ours.push(mebibytes(sum?));
    }
    kernel.ours.push(slab_of_each);
    mean.ours.push(processes.ours.mean() + slab_of_each);
    Ok(vec![mean, processes, kernel])
}

/// Waits until all other sessions are gone.
fn only_waiting(ours: &Ours, count: usize) -> anyhow::Result<Vec<String>> {
    for _ in 0..60 {
        std::thread::sleep(REST);
        let sessions = ours.groups().sessions();
        if sessions.len() == count + ours.holders() {
            return with_program(ours, sessions.into_iter().collect(), count);
        }
    }
    let there = ours.groups().sessions().len();
    ensure!(there == count, "{there} sessions are there, not the {count} that wait");
    Ok(Vec::new())
}

/// Those that are no holders: they have a process more.
fn with_program(ours: &Ours, mut sessions: Vec<String>, count: usize) -> anyhow::Result<Vec<String>> {
    let processes = ours.groups().memory_of(&sessions)?;
    sessions.sort_by_key(|session| std::cmp::Reverse(processes.get(session).map(|(pids, _)| pids.len())));
    sessions.truncate(count);
    Ok(sessions)
}

/// The line that sessions of the template `data` have run before they wait; empty if there is none.
fn warm_up(images: &Path) -> anyhow::Result<String> {
    let image = document(&images.join("data/image.json"))?;
    Ok(image["warm_up"].as_str().unwrap_or_default().to_owned())
}

/// The same images, whose sessions run nothing before they wait: the same files, by hard links.
fn without_warm_up(images: &Path) -> anyhow::Result<TempDir> {
    let beside = images.parent().context("images lie in a folder")?;
    let folder = tempfile::Builder::new().prefix("images-bench-").tempdir_in(beside)?;
    for name in ["base", "data"] {
        let from = images.join(name).canonicalize()?;
        let version = from.file_name().context("an image has a name")?;
        let to = folder.path().join(version);
        let copied = Command::new("cp").arg("-al").args([&from, &to]).status()?;
        ensure!(copied.success(), "cp -al {}: {copied}", from.display());
        std::os::unix::fs::symlink(version, folder.path().join(name))?;
    }
    let file = folder.path().join("data/image.json");
    let mut image = document(&file)?;
    image["warm_up"] = Value::Null;
    // A file of its own: that of the image stays as it is.
    fs::remove_file(&file)?;
    fs::write(&file, image.to_string())?;
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(folder)
}

fn document(file: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}
