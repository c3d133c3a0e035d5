//! Blobs that lose the least there is for their size, and the curve of size against loss.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smol_tests::common::{
    Checkpoint, Outcome, TALES, TempDir, TensorDtype, blob, data, repository, run, tales,
};

use crate::convert::{assert_same_on_any_threads, convert, inspect};
use crate::perplexity::{compare, session, tokens};

/// The beginning of a text, as a file.
fn beginning_of(text: &Path, bytes: usize, temp: &TempDir, name: &str) -> PathBuf {
    let (text, path) = (fs::read_to_string(text).unwrap(), temp.join(name));
    fs::write(&path, &text[..bytes]).unwrap();
    path
}

/// What tales-4m is calibrated on here: a tenth of what comes with the program, so that it does not take long.
fn calibration(temp: &TempDir) -> PathBuf {
    beginning_of(&repository().join("convert/data/calibration.txt"), 10_000, temp, "calibration.txt")
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn dtypes(blob: &Path) -> Vec<(String, String)> {
    let found = inspect(blob);
    let sections = found["sections"].as_array().unwrap().iter();
    let quantized = sections.filter(|section| section["dtype"].as_str().unwrap().starts_with('q'));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    quantized.map(|section| (text(&section["kind"]), text(&section["dtype"]))).collect()
}

/// The bytes of the smallest blob, as a refusal says them.
fn smallest(outcome: &Outcome) -> u64 {
    let (_, rest) = outcome.stderr.split_once("expected at least ").unwrap();
    rest.split_once(" bytes").unwrap().0.parse().unwrap()
}

#[test]
fn a_blob_of_a_size_fits_and_loses_no_more_than_a_fixed_mix_of_that_size() {
    let temp = TempDir::new();
    let (fixed, best) = (temp.join("fixed.bin"), temp.join("best.bin"));
    let calibrate = ["--calibrate", "none"];
    let made = convert(&tales(), &fixed, &[&["--dtype", "q4"][..], &calibrate].concat());
    assert_eq!(made.code, 0, "{made:?}");
    let size = len(&fixed).to_string();
    let made = convert(&tales(), &best, &[&["--size", &size][..], &calibrate].concat());
    assert_eq!(made.code, 0, "{made:?}");
    assert!(len(&best) <= len(&fixed) && len(&best) > len(&fixed) * 99 / 100, "{} of {size}", len(&best));
    let mut exact = session(&blob(TALES));
    let tokens = tokens(&exact);
    let [fixed, best] = [&fixed, &best]
        .map(|path| compare(&mut session(path), &mut exact, &tokens[..4096], 512).mean_divergence());
    assert!(best < 0.95 * fixed, "{best}, {fixed}");
}

#[test]
fn a_size_is_in_the_metadata_and_keep_has_the_last_word() {
    let temp = TempDir::new();
    let out = temp.join("out.bin");
    let refused = convert(&tales(), &out, &["--size", "1kB", "--calibrate", "none"]);
    let size = (smallest(&refused) + 400_000).to_string();
    let args = ["--size", &size, "--keep", "down_proj=q5", "--keep", "o_proj.1=q8", "--calibrate", "none"];
    let made = convert(&tales(), &out, &args);
    assert_eq!(made.code, 0, "{made:?}");
    let found = inspect(&out);
    let quantisation = &found["metadata"]["quantisation"];
    assert_eq!((quantisation["size"].to_string(), &quantisation["dtype"]), (size, &Value::Null));
    assert_eq!(quantisation["keep"], json!(["down_proj=q5", "o_proj.1=q8"]));
    let dtypes = dtypes(&out);
    let of = |kind: &str| -> Vec<&str> {
        dtypes.iter().filter(|(found, _)| found == kind).map(|(_, dtype)| dtype.as_str()).collect()
    };
    assert_eq!(of("down_proj"), ["q5"; 8]);
    assert_eq!(of("o_proj")[1], "q8");
    assert_eq!(run("smolconv", &["verify".as_ref(), out.as_os_str()]).code, 0);
}

#[test]
fn bytes_of_a_size_do_not_depend_on_the_threads() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    checkpoint.write(&temp.join("model"));
    let text = calibration(&temp);
    let refused = convert(&temp.join("model"), &temp.join("out.bin"), &["--size", "1kB"]);
    let size = (smallest(&refused) + 8192).to_string();
    let args = ["--size", &size, "--calibrate", text.to_str().unwrap()];
    assert_same_on_any_threads(&temp.join("model"), &args);
}

#[test]
fn a_size_that_is_too_small_is_refused_with_the_smallest_that_is_not() {
    let temp = TempDir::new();
    let (model, out) = (tales(), temp.join("out.bin"));
    let refused = convert(&model, &out, &["--size", "1kB", "--calibrate", "none"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");
    assert!(refused.stderr.starts_with("smolconv: error: size 1kB: expected at least "), "{refused:?}");
    assert!(refused.stderr.ends_with(" bytes for this model, found 1000\n"), "{refused:?}");
    assert!(temp.names().is_empty(), "{:?}", temp.names());
    let smallest = smallest(&refused);
    let less = (smallest - 1).to_string();
    assert_eq!(convert(&model, &out, &["--size", &less, "--calibrate", "none"]).code, 2);
    let made = convert(&model, &out, &["--size", &smallest.to_string(), "--calibrate", "none"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(len(&out) <= smallest, "{} of {smallest}", len(&out));
    assert!(dtypes(&out).iter().all(|(_, dtype)| dtype == "q3"), "{:?}", dtypes(&out));
}

#[test]
fn what_fits_as_it_is_stays_as_it_is() {
    let temp = TempDir::new();
    let [auto, sized] = ["auto.bin", "sized.bin"].map(|name| temp.join(name));
    assert_eq!(convert(&tales(), &auto, &["--dtype", "auto"]).code, 0);
    let size = len(&auto).to_string();
    for size in [size.as_str(), "1GB"] {
        assert_eq!(convert(&tales(), &sized, &["--size", size, "--force"]).code, 0);
        assert!(fs::read(&auto).unwrap() == fs::read(&sized).unwrap(), "{size}");
    }
}

#[test]
fn sizes_that_are_none_and_other_dtypes_beside_one_are_wrong_usage() {
    let temp = TempDir::new();
    let out = temp.join("out.bin");
    for (more, expected) in [
        (&["--size", "3MB", "--dtype", "q4"][..], "'--size <BYTES>' cannot be used with '--dtype <DTYPE>'"),
        (&["--size", "70 apples"], "expected bytes, such as 70MB, 66.5MiB or 70000000, found \"70 apples\""),
        (&["--size", "0"], "expected bytes"),
        (&["--size", "3", "MB"], "unexpected argument 'MB' found"),
    ] {
        let refused = convert(&tales(), &out, more);
        assert!(refused.code == 2 && refused.stderr.contains(expected), "{refused:?}");
    }
    let help = run("smolconv", &["--help"]).stdout;
    assert!(
        help.contains("--size <BYTES>") && help.contains("smolconv models/tales-4m --size 3MB"),
        "{help}"
    );
}

#[test]
fn a_blob_without_a_name_is_called_by_its_size() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let mut command = std::process::Command::new(smol_tests::common::program("smolconv"));
    let made = command.current_dir(temp.path()).args(["model", "--size", "9MB", "-q"]).output().unwrap();
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
    assert_eq!(temp.names(), ["model", "model-9MB.bin"]);
}

/// Names of elements that are open at some place; an error if they are not closed in order.
fn assert_is_xml(text: &str) {
    let mut open = Vec::new();
    for element in text.split('<').skip(1) {
        let (tag, text) = element.split_once('>').expect("every tag ends");
        assert!(!text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").contains('&'), "{text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty() && text.starts_with("<svg xmlns="), "{open:?}");
}

#[test]
fn a_report_has_a_point_for_each_size_and_each_fixed_mix() {
    let temp = TempDir::new();
    let (model, svg) = (temp.join("a<b>&c"), temp.join("report.svg"));
    std::os::unix::fs::symlink(tales(), &model).unwrap();
    let text = beginning_of(&data("ppl.txt"), 8000, &temp, "text.txt");
    let report = |more: &[&str]| {
        let args = ["quantize-report", model.to_str().unwrap(), "--text", text.to_str().unwrap()];
        run("smolconv", &[&args[..], &["--calibrate", "none"], more].concat())
    };
    let refused = report(&["--sizes", "1kB"]);
    assert!(refused.code == 2 && refused.stderr.contains("size 1kB: expected at least"), "{refused:?}");
    let sizes = [0, 400_000].map(|more| (smallest(&refused) + more).to_string());
    let found = report(&["--sizes", &sizes.join(","), "--json", "-o", svg.to_str().unwrap()]);
    assert_eq!((found.code, found.stderr.as_str()), (0, ""), "{found:?}");
    let json: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!((&json["source"], &json["text"]["name"]), (&json!("a<b>&c"), &json!("text.txt")));
    let points = json["points"].as_array().unwrap();
    let named = |name: &str| points.iter().find(|point| point["name"] == name).unwrap();
    assert_eq!(points.len(), 5);
    for size in &sizes {
        assert!(named(size)["bytes"].as_u64().unwrap() <= size.parse::<u64>().unwrap(), "{json}");
    }
    for mix in ["q8", "q4", "q3"] {
        assert_eq!(named(mix)["is_fixed"], true);
        assert!(named(mix)["mean_kl"].as_f64().unwrap() >= 0.0, "{json}");
    }
    assert!(named("q8")["mean_kl"].as_f64() < named(&sizes[0])["mean_kl"].as_f64(), "{json}");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert_is_xml(&drawn);
    assert!(drawn.contains("Size and loss of a&lt;b&gt;&amp;c"), "{drawn}");
    for (class, count) in [("size", 2), ("fixed", 3)] {
        assert_eq!(drawn.matches(&format!("<circle class=\"{class}\"")).count(), count, "{drawn}");
    }
    assert_eq!(temp.names(), ["a<b>&c", "report.svg", "text.txt"]);
    let again = report(&["--sizes", &sizes[0], "-o", svg.to_str().unwrap()]);
    assert!(again.code == 1 && again.stderr.contains("exists already; --force replaces it"), "{again:?}");
}

#[test]
fn a_report_is_a_table_of_sizes_in_ascending_order() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let text = beginning_of(&data("ppl.txt"), 4000, &temp, "text.txt");
    let mut command = std::process::Command::new(smol_tests::common::program("smolconv"));
    command.current_dir(temp.path()).args(["quantize-report", "model", "--calibrate", "none", "--text"]);
    let found: Outcome = command.arg(&text).output().unwrap().into();
    assert_eq!((found.code, found.stderr.as_str()), (0, ""), "{found:?}");
    let mut lines = found.stdout.lines();
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["MB", "perplexity", "change", "mean", "KL", "top-1"]
    );
    assert_eq!(lines.clone().count(), 7 + 3, "{found:?}");
    assert_eq!(temp.names(), ["model", "text.txt"]);
    let help = run("smolconv", &["quantize-report", "--help"]).stdout;
    assert!(help.contains("--sizes 65MB,70MB,77.2MB,90MB -o report.svg"), "{help}");
}
