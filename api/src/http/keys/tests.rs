//! Tests of API keys.

use super::*;
use actix_web::test::TestRequest;
use tempfile::TempDir;
use tiercel_device::Tier;

fn request(authorization: &str) -> HttpRequest {
    TestRequest::default().insert_header((header::AUTHORIZATION, authorization)).to_http_request()
}

fn settings(api_keys: &[&str]) -> HttpSettings {
    let api_keys = api_keys.iter().map(|key| key.to_string()).collect();
    HttpSettings { api_keys, ..HttpSettings::default() }
}

/// Returns the lines of a keys file for a key of this name and secret.
fn entry(name: &str, secret: &str, more: &str) -> String {
    let digits: String = Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\n{more}\n")
}

/// A keys file, and the keys read from it.
struct OfFile {
    folder: TempDir,
    keys: Keys,
}

impl OfFile {
    fn new(text: &str) -> OfFile {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("keys.toml");
        std::fs::write(&file, text).unwrap();
        let keys_file = Some(file.to_str().unwrap().to_owned());
        let keys = Keys::new(&HttpSettings { keys_file, ..settings(&["old"]) }).unwrap();
        OfFile { folder, keys }
    }

    fn rewrite(&self, text: &str) -> Result<(usize, usize), KeysError> {
        std::fs::write(self.folder.path().join("keys.toml"), text).unwrap();
        self.keys.reload()
    }

    fn caller(&self, secret: &str) -> Result<Caller, String> {
        let caller = self.keys.caller(&request(&format!("Bearer {secret}")));
        caller.map_err(|error| error.to_string())
    }
}

#[test]
fn without_keys_all_clients_are_one_tenant_with_all_rights() {
    let keys = Keys::new(&settings(&[])).unwrap();
    let caller = |authorization| keys.caller(&request(authorization)).unwrap();
    assert_eq!(caller("Bearer a").salt, caller("Bearer b").salt);
    assert_eq!(caller("Bearer a").salt, caller("Basic eDp5").salt);
    assert_eq!(caller("Bearer a").rights, Rights::ALL);
    let other_process = Keys::new(&settings(&[])).unwrap();
    assert_ne!(other_process.caller(&request("")).unwrap().salt, caller("").salt);
}

#[test]
fn a_tenant_has_the_same_label_after_a_restart_but_another_salt() {
    let salt = |key: &str| {
        let keys = Keys::new(&settings(&["k1", "k2"])).unwrap();
        keys.caller(&request(&format!("Bearer {key}"))).unwrap().salt
    };
    let (before, after) = (salt("k1"), salt("k1"));
    assert_eq!(before.label(), after.label());
    assert_ne!(before, after);
    assert_ne!(before.label(), salt("k2").label());
}

#[test]
fn a_server_with_keys_wants_one_of_them() {
    let keys = Keys::new(&settings(&["k1", "k2"])).unwrap();
    let salt = |authorization| keys.caller(&request(authorization)).unwrap().salt;
    assert_eq!(salt("Bearer k2"), salt("bearer  k2"));
    assert_ne!(salt("Bearer k1"), salt("Bearer k2"));
    assert_eq!(keys.caller(&request("Bearer k1")).unwrap().rights, Rights::STANDARD);
    for wrong in ["Bearer k3", "k1", "Bearer ", ""] {
        assert!(keys.caller(&request(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn keys_of_a_file_have_their_tenant_and_their_rights() {
    let premium = "tenant = \"shop\"\nhighest_tier = \"premium\"";
    let server =
        OfFile::new(&[entry("a", "1", premium), entry("b", "2", "tenant = \"shop\"")].concat());
    let [first, second, old] = ["1", "2", "old"].map(|secret| server.caller(secret).unwrap());
    assert_eq!(first.salt, second.salt, "two keys of one tenant");
    assert_ne!(first.salt, old.salt);
    let served =
        [first, second, old].map(|caller| caller.rights.tier(Some(Tier::Premium)).unwrap());
    assert_eq!(served, [Tier::Premium, Tier::Standard, Tier::Standard]);
}

#[test]
fn a_key_has_the_share_of_its_tenant_and_the_right_to_tighten_that_it_states() {
    let server = OfFile::new(
        &[
            entry("a", "1", "tenant = \"shop\"\nshare = 3\nmay_tighten_targets = true"),
            entry("b", "2", "tenant = \"shop\"\nmay_tighten_targets = false"),
        ]
        .concat(),
    );
    let callers = ["1", "2", "old"].map(|secret| server.caller(secret).unwrap());
    let found = callers.map(|caller| (caller.weight.get(), caller.rights.may_tighten));
    assert_eq!(found, [(3.0, Some(true)), (3.0, Some(false)), (1.0, None)]);
}

#[test]
fn an_expired_key_is_refused() {
    let server = OfFile::new(
        &[entry("gone", "1", "expires = 2000-01-01"), entry("live", "2", "expires = 2999-01-01")]
            .concat(),
    );
    assert!(server.caller("1").unwrap_err().contains("expired"));
    assert!(server.caller("2").is_ok());
}

#[test]
fn a_file_is_read_again_and_a_wrong_one_changes_nothing() {
    let server = OfFile::new(&entry("a", "1", ""));
    let both = [entry("b", "2", ""), entry("c", "3", "")].concat();
    assert_eq!(server.rewrite(&both).unwrap(), (2, 3), "the key of the settings stays");
    assert!(
        server.caller("1").is_err() && server.caller("2").is_ok() && server.caller("old").is_ok()
    );
    let error = server.rewrite("[[key]]").expect_err("no name").to_string();
    assert!(error.contains("keys.toml: line 1"), "{error}");
    assert!(server.caller("2").is_ok());
}

#[test]
fn a_key_stands_in_one_place_only() {
    let server = OfFile::new(&entry("a", "1", ""));
    let error = server.rewrite(&entry("b", "old", "")).expect_err("it is in the settings");
    assert!(error.to_string().contains("key b: sha256 is the hash of http.api_keys[1]"), "{error}");
}

#[test]
fn every_key_is_compared_and_the_right_one_found() {
    let entries: Vec<String> =
        (0..50).map(|number| entry(&format!("k{number}"), &number.to_string(), "")).collect();
    let server = OfFile::new(&entries.concat());
    let salts: Vec<Salt> =
        (0..50).map(|number| server.caller(&number.to_string()).unwrap().salt).collect();
    let distinct: std::collections::BTreeSet<Salt> = salts.into_iter().collect();
    assert_eq!(distinct.len(), 50);
}
