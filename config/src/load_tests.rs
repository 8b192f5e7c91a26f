//! Tests of loading settings: which source (file, environment, flag) overrides which, the error messages, and that the
//! list of settings matches the types.

use super::*;
use crate::renamed::RENAMED;
use crate::{
    DeviceKind, EngineSettings, Kind, KvElement, PreemptionMode, Target, TierSlo, VictimRelease,
    Weights, field,
};
use std::collections::BTreeSet;

fn load(file: &str) -> Result<ServerSettings, LoadError> {
    let mut loader = Loader::default();
    loader.text(Path::new("t.toml"), file)?;
    loader.finish().map(|(settings, _)| settings)
}

fn refused(file: &str) -> String {
    let error = load(file).expect_err("not allowed").to_string();
    assert!(!error.contains('\n'), "one line: {error}");
    error
}

#[test]
fn later_layers_win() {
    let mut loader = Loader::default();
    loader
        .text(
            Path::new("t.toml"),
            "[scheduler]\nmax_num_seqs = 8\n[kv]\ntype = \"f32\"\n[slo.premium]\ntpot_ms = 10\n",
        )
        .unwrap();
    let vars = [
        ("TIERCEL_SCHEDULER_MAX_NUM_SEQS", "9"),
        ("TIERCEL_HTTP_API_KEYS", "a, b"),
        ("TIERCEL_SLO_PREMIUM_E2E_MS", "none"),
        ("PATH", "/bin"),
    ];
    loader.env(vars.map(|(k, v)| (k.to_owned(), v.to_owned())), &[]).unwrap();
    loader.flag(field("scheduler.max_num_seqs").unwrap(), "--max-num-seqs", "10").unwrap();
    loader.assignment("scheduler.watermark_percent=7.5").unwrap();
    let (settings, warnings) = loader.finish().unwrap();
    assert_eq!(settings.engine.scheduler.max_num_seqs, 10);
    assert_eq!(settings.engine.scheduler.watermark_percent, 7.5);
    assert_eq!(settings.kv.element, KvElement::F32);
    assert_eq!(settings.http.api_keys, ["a", "b"]);
    // A table of the settings file that sets only some of its settings leaves the others at their defaults.
    let default = EngineSettings::default().slo.premium;
    let premium = TierSlo { tpot_ms: Target::Ms(10.0), e2e_ms: Target::None, ..default };
    assert_eq!(settings.engine.slo.premium, premium);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn words_become_types() {
    let text = "[model]\nweights = \"q8_0\"\nsource = \"m.gguf\"\n[device]\nkind = \"mock:tiny\"\n\
                [preemption]\nmode = \"swap\"\n[prefix_cache]\nenabled = false\n";
    let settings = load(text).unwrap();
    assert_eq!(settings.model.weights, Weights::Q8_0);
    assert_eq!(settings.model.source.as_deref(), Some("m.gguf"));
    assert_eq!(settings.device.kind, DeviceKind::Mock("tiny".into()));
    assert_eq!(settings.engine.preemption.mode, PreemptionMode::Swap);
    assert!(!settings.engine.prefix_cache.enabled);
}

#[test]
fn errors_name_file_line_setting_and_what_is_allowed() {
    let error = refused("\n[scheduler]\nmax_num_seqs = 0\n");
    assert_eq!(
        error,
        "t.toml:3: scheduler.max_num_seqs = 0 is not allowed: expected a whole number from 1 to 4096"
    );
    assert!(refused("[scheduler]\nmax_num_seqs = \"x\"").starts_with("t.toml:2: "));
    assert!(refused("[scheduler]\nwatermark_percent = nan").contains("0 to 50"));
    assert!(refused("[kv]\ntype = \"f8\"").contains("f32, f16, bf16, q8"));
    assert!(refused("[device]\nkind = \"mock:\"").contains("mock:PROFILE"));
    assert!(refused("scheduler = 3").contains("t.toml:1: unknown setting scheduler"));
    assert!(refused("[scheduler\n").contains("t.toml:1: not valid TOML"));
    assert!(refused("[http]\napi_keys = [1]").contains("list of texts"));
    let secret = refused("[http]\napi_keys = \"SECRET,k2\"");
    assert!(secret.contains("list of texts") && !secret.contains("SECRET"), "{secret}");
    assert!(refused("[http]\napi_keys = [\"\"]").contains("empty key"));
    assert!(refused("[slo]\nmax_tenants = 4").contains("http.keys_file"));
    let open = "[http]\nlisten = \"0.0.0.0:80\"\n";
    assert!(refused(open).contains("http.listen: lets other machines in"));
    for more in ["api_keys = [\"k\"]", "keys_file = \"k.toml\"", "allow_anonymous = true"] {
        assert!(load(&format!("{open}{more}")).is_ok(), "{more}");
    }
    assert!(refused("[shares]\npremium_percent = 60.0").contains("100 together"));
    assert!(refused("[kv]\nblock_size = 12").contains("multiple of 8"));
    let conflict = refused("[scheduler]\nmax_num_seqs = 512\n");
    assert!(conflict.contains("max_num_batched_tokens"), "{conflict}");
}

#[test]
fn unknown_settings_are_refused_with_a_suggestion() {
    let error = refused("[scheduler]\npolicy = \"fcfs\"\nmax_num_seq = 3\n");
    assert_eq!(
        error,
        "t.toml:3: unknown setting scheduler.max_num_seq; did you mean scheduler.max_num_seqs?"
    );
    assert!(refused("kv_type = \"f16\"").contains("did you mean kv.type?"));
    assert!(refused("[colours]\n").contains("docs/configuration.md"));
    let mut loader = Loader::default();
    assert!(loader.assignment("nonsense").is_err());
    assert_eq!(
        loader.assignment("http.listen").expect_err("an assignment needs a value").to_string(),
        "--set: http.listen has no value; write --set http.listen=VALUE, where VALUE is HOST:PORT"
    );
}

#[test]
fn an_address_without_host_or_port_is_refused_with_a_suggestion() {
    let mut loader = Loader::default();
    let error = loader.flag(field("http.listen").unwrap(), "--listen", "8080").expect_err("a port");
    assert_eq!(
        error.to_string(),
        "--listen: http.listen = \"8080\" is not allowed: expected HOST:PORT; did you mean \
         127.0.0.1:8080?"
    );
    assert!(refused("[http]\nlisten = \":80\"").contains("did you mean 0.0.0.0:80?"));
}

/// Returns the loader's settings and warnings after one assignment by `--set`.
fn assigned(assignment: &str) -> Result<(ServerSettings, Vec<String>), LoadError> {
    let mut loader = Loader::default();
    loader.assignment(assignment)?;
    loader.finish()
}

#[test]
fn an_old_name_is_read_with_one_warning_that_names_the_new_name() {
    let mut loader = Loader::default();
    let file = "[http]\nhead_wait_ms = 7\n";
    loader.text(Path::new("t.toml"), file).unwrap();
    let var = ("TIERCEL_PREEMPTION_VICTIM_GIVES".to_owned(), "needed".to_owned());
    loader.env([var], &[]).unwrap();
    loader.assignment("preemption.victim_gives_blocks=3").unwrap();
    let given: Vec<_> = loader.given().collect();
    let new = [
        "http.first_token_wait_ms",
        "preemption.victim_release",
        "preemption.victim_release_blocks",
    ];
    assert_eq!(given, new);
    let (settings, warnings) = loader.finish().unwrap();
    assert_eq!(settings.http.first_token_wait_ms, 7);
    assert_eq!(settings.engine.preemption.victim_release, VictimRelease::Needed);
    assert_eq!(settings.engine.preemption.victim_release_blocks, 3);
    assert_eq!(
        warnings,
        [
            "t.toml:2: http.head_wait_ms is now called http.first_token_wait_ms; use the new name",
            "TIERCEL_PREEMPTION_VICTIM_GIVES: preemption.victim_gives is now called \
             preemption.victim_release; use the new name",
            "--set: preemption.victim_gives_blocks is now called preemption.victim_release_blocks; \
             use the new name",
        ]
    );
}

#[test]
fn every_renamed_setting_is_read_from_each_place() {
    for (old, new) in RENAMED {
        let default = Table::try_from(ServerSettings::default()).unwrap();
        let (table, key) = new.split_once('.').unwrap();
        let value = &default[table][key];
        let (old_table, old_key) = old.split_once('.').unwrap();
        let text = value.to_string().replace('"', "");
        let mut loaders = [Loader::default(), Loader::default(), Loader::default()];
        let file = format!("[{old_table}]\n{old_key} = {value}\n");
        loaders[0].text(Path::new("t.toml"), &file).expect(old);
        loaders[1].env([(variable(old), text.clone())], &[]).expect(old);
        loaders[2].assignment(&format!("{old}={text}")).expect(old);
        for loader in loaders {
            assert_eq!(loader.given().collect::<Vec<_>>(), [*new]);
            assert_eq!(loader.finish().expect(old).1.len(), 1, "{old}");
        }
    }
}

#[test]
fn an_old_and_a_new_name_together_are_refused() {
    assert_eq!(
        refused("[http]\nfirst_token_wait_ms = 8\nhead_wait_ms = 7\n"),
        "t.toml:3: http.head_wait_ms is the old name of http.first_token_wait_ms, and both are set; \
         remove http.head_wait_ms"
    );
    // It does not matter whether the old or the new name comes first, nor that they are given in different places.
    let mut loader = Loader::default();
    loader.assignment("preemption.victim_release=all").unwrap();
    let error = loader.assignment("preemption.victim_gives=needed").expect_err("both names");
    assert_eq!(
        error.to_string(),
        "--set: preemption.victim_gives is the old name of preemption.victim_release, and both are \
         set; remove preemption.victim_gives"
    );
    let mut loader = Loader::default();
    loader.text(Path::new("t.toml"), "[http]\nhead_wait_ms = 7\n").unwrap();
    let var = ("TIERCEL_HTTP_FIRST_TOKEN_WAIT_MS".to_owned(), "8".to_owned());
    let error = loader.env([var], &[]).expect_err("both names").to_string();
    assert!(error.contains("http.head_wait_ms"), "{error}");
    assert!(error.contains("http.first_token_wait_ms"), "{error}");
}

#[test]
fn an_error_under_an_old_name_says_the_name_as_it_was_written() {
    let error = assigned("http.head_wait_ms=x").expect_err("a word").to_string();
    assert!(error.starts_with("--set: http.head_wait_ms = \"x\" is not allowed"), "{error}");
    let error = assigned("http.head_wait_ms").expect_err("no value").to_string();
    assert!(error.contains("write --set http.first_token_wait_ms=VALUE"), "{error}");
}

#[test]
fn the_model_may_have_several_names() {
    let names = |file: &str| load(file).map(|settings| settings.model.served_name);
    assert_eq!(names("[model]\nserved_name = \"a\"\n").unwrap(), ["a"]);
    assert_eq!(names("[model]\nserved_name = [\"a\", \"b\"]\n").unwrap(), ["a", "b"]);
    let mut loader = Loader::default();
    loader.flag(field("model.served_name").unwrap(), "--served-name", "a,b").unwrap();
    assert_eq!(loader.finish().unwrap().0.model.served_name, ["a", "b"]);
    assert!(refused("[model]\nserved_name = \"a,b\"").contains("a list of texts"));
    for (list, why) in [("\"a\", \"a\"", "twice"), ("\"\"", "1 to 256 bytes")] {
        assert!(refused(&format!("[model]\nserved_name = [{list}]")).contains(why), "{list}");
    }
    let many: Vec<String> = (0..33).map(|n| format!("\"{n}\"")).collect();
    assert!(refused(&format!("[model]\nserved_name = [{}]", many.join(","))).contains("32 names"));
}

#[test]
fn a_misspelt_variable_warns_and_a_bad_value_names_the_variable() {
    let mut loader = Loader::default();
    let var = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
    loader.env(var("TIERCEL_PORT_8080_TCP", "tcp://10.0.0.1"), &[]).unwrap();
    loader.env(var("TIERCEL_CONFIG", "x"), &["TIERCEL_CONFIG"]).unwrap();
    let error = loader.env(var("TIERCEL_DEVICE_THREADS", "many"), &[]).expect_err("a word");
    assert!(error.to_string().starts_with("TIERCEL_DEVICE_THREADS: device.threads"), "{error}");
    assert_eq!(loader.finish().unwrap().1.len(), 1);
}

#[test]
fn a_missing_or_huge_file_is_refused() {
    let missing = Loader::default().file(Path::new("/nonexistent.toml")).expect_err("missing");
    assert!(missing.to_string().contains("/nonexistent.toml"));
}

/// Returns settings in which every optional value is set, so that the serialized settings name every field, for
/// comparison with the list of settings.
fn full() -> ServerSettings {
    let mut settings = ServerSettings::default();
    settings.model.source = Some("m".into());
    settings.model.served_name = vec!["n".into()];
    settings.mock.replies_file = Some("r".into());
    settings.mock.faults_file = Some("f".into());
    settings.mock.record_file = Some("a".into());
    settings.http.keys_file = Some("k".into());
    settings.http.tls_cert_file = Some("c".into());
    settings.http.tls_key_file = Some("k".into());
    settings.model.temperature = Some(0.5);
    settings.kv.host_mib = Some(1);
    settings.model.chat_template = Some("a".into());
    settings
}

fn leaves(prefix: &str, table: &Table, out: &mut BTreeSet<String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => leaves(&format!("{prefix}{key}."), inner, out),
            _ => _ = out.insert(format!("{prefix}{key}")),
        }
    }
}

#[test]
fn the_field_table_names_exactly_the_fields_of_the_types() {
    let mut found = BTreeSet::new();
    leaves("", &Table::try_from(full()).unwrap(), &mut found);
    let named: BTreeSet<String> = FIELDS.iter().map(|field| field.path.clone()).collect();
    assert_eq!(named, found);
    let flags: BTreeSet<_> = FIELDS.iter().filter_map(|field| field.flag).collect();
    assert_eq!(flags.len(), FIELDS.iter().filter(|field| field.flag.is_some()).count());
}

#[test]
fn both_ends_of_every_range_load_and_one_beyond_does_not() {
    for field in FIELDS.iter() {
        let Kind::Integer { low, high } = field.kind else { continue };
        let set = |value: u64| {
            let mut loader = Loader::default();
            loader.assignment(&format!("{}={value}", field.path)).map(|()| loader)
        };
        assert!(set(high + 1).is_err(), "{}", field.path);
        assert!(low == 0 || set(low - 1).is_err(), "{}", field.path);
        for value in [low, high] {
            let loaded = set(value).expect(&field.path).finish();
            let conflict =
                matches!(loaded, Err(LoadError::Settings(SettingsError::Conflict { .. })));
            assert!(loaded.is_ok() || conflict, "{} = {value}: {loaded:?}", field.path);
        }
    }
}

#[test]
fn a_gpu_is_named_by_its_number() {
    let kind = |text: &str| DeviceKind::try_from(text.to_owned());
    assert_eq!(kind("cuda"), Ok(DeviceKind::Cuda(0)));
    assert_eq!(kind("cuda:3"), Ok(DeviceKind::Cuda(3)));
    assert_eq!(String::from(DeviceKind::Cuda(3)), "cuda:3");
    for wrong in ["cuda:", "cuda:x", "cuda:-1", "gpu", "mock:"] {
        assert!(kind(wrong).is_err_and(|why| why.contains("cuda:N")), "{wrong}");
    }
}

#[test]
fn tls_needs_both_files_and_metrics_a_listener_that_is_on() {
    let wrong = |http: &str| {
        let mut loader = Loader::default();
        loader.text(Path::new("t.toml"), &format!("[http]\n{http}")).unwrap();
        loader.finish().map(|_| ()).map_err(|error| error.to_string())
    };
    let missing = |name: &str, http: &str| {
        let why = wrong(http).expect_err(http);
        assert!(why.starts_with(&format!("{name}: is missing")), "{why}");
    };
    missing("http.tls_key_file", "tls_cert_file = \"c\"");
    missing("http.tls_cert_file", "tls_key_file = \"k\"");
    assert_eq!(wrong("tls_cert_file = \"c\"\ntls_key_file = \"k\""), Ok(()));
    let off = wrong("metrics = \"control\"\ncontrol_listen = \"off\"").expect_err("off");
    assert!(off.starts_with("http.metrics: "), "{off}");
    assert_eq!(wrong("metrics = \"public\"\ncontrol_listen = \"off\""), Ok(()));
}
