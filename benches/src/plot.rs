//! A plot per thing that was measured. Brig draws them: matplotlib of the template `data`, in a jail.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use brig_tests::Brig;
use serde_json::{Value, json};

use crate::ours::Ours;
use crate::samples::Measurement;

/// Draws them into a folder `plots`; gives their number.
pub(crate) fn draw(ours: &Ours, measured: &[Measurement], script: &Path, out: &Path) -> anyhow::Result<usize> {
    let samples = out.join("samples.json");
    let all: Vec<Value> = measured.iter().map(series).collect();
    fs::write(&samples, serde_json::to_string(&all)?)?;
    let plots = out.join("plots");
    if plots.exists() {
        fs::remove_dir_all(&plots)?;
    }
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path of letters");
    let arguments = [
        "run",
        "-q",
        "--timeout",
        "120s",
        "--out",
        &text(&plots)?,
        "--input",
        &text(&samples)?,
        &text(script)?,
    ];
    let brig = Brig::command(&ours.services().socket(), &arguments).run();
    ensure!(brig.code == Some(0), "{}: {}", script.display(), brig.stderr);
    let drawn = fs::read_dir(&plots)?.count();
    ensure!(drawn == measured.len(), "{drawn} plots of {}", measured.len());
    Ok(drawn)
}

fn series(measurement: &Measurement) -> Value {
    json!({
        "name": measurement.name,
        "unit": measurement.unit.name(),
        "brig": measurement.ours,
        "peers": measurement.peers,
    })
}
