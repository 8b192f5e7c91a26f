//! Tests of models that the `--model` setting gives by a path.

use super::*;

fn local(path: &Path) -> Result<ResolvedModel, SourceError> {
    Resolver::new("/nowhere".into()).resolve(Some(path.to_str().unwrap()))
}

#[test]
fn a_gguf_path_is_recognised_by_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("My-Model.Q8_0.gguf");
    fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    let resolved = local(&path).unwrap();
    assert_eq!(resolved.files, ModelFiles::Gguf(path.clone()));
    assert_eq!(resolved.name, "My-Model.Q8_0");
    for content in [&b"GG"[..], b"", b"PK\x03\x04"] {
        fs::write(&path, content).unwrap();
        assert!(local(&path).unwrap_err().to_string().contains("not a GGUF file"));
    }
    let missing = local(&dir.path().join("x.gguf")).unwrap_err().to_string();
    assert!(missing.contains("no such model") && !missing.contains("hf:"), "{missing}");
    let repo = local(Path::new("Some/Repo-1B")).unwrap_err().to_string();
    assert!(repo.contains("hf:Some/Repo-1B"), "{repo}");
    assert!(local(Path::new("/dev/null")).is_err());
}

#[test]
fn a_directory_must_be_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let fails = |part: &str| {
        let message = local(path).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    fails("config.json");
    fs::write(path.join("m.gguf"), "GGUF").unwrap();
    fails("m.gguf");
    fs::write(path.join("config.json"), "{}").unwrap();
    fails("tokenizer.json");
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    fails("neither model.safetensors");
    let index = |text: &str| fs::write(path.join("model.safetensors.index.json"), text).unwrap();
    index("{");
    fails("not a valid index");
    index(r#"{"weight_map": {"a": "../../etc/passwd"}}"#);
    fails("outside its directory");
    index(r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#);
    fs::write(path.join("m-1.safetensors"), "").unwrap();
    fails("m-2.safetensors");
    fs::write(path.join("m-2.safetensors"), "").unwrap();
    let resolved = local(path).unwrap();
    assert_eq!(resolved.files, ModelFiles::HfDir(path.to_owned()));
    assert_eq!(resolved.name, path.file_name().unwrap().to_str().unwrap());
}
