//! Tests of the keys file.

use super::*;

/// SHA-256 of "k1", in hexadecimal digits, by sha256sum.
const HASH: &str = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0";

fn parse(text: &str) -> Result<Vec<ApiKey>, String> {
    parse_keys(&text.replace("HASH", HASH), Path::new("keys.toml"))
        .map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn a_key_of_name_and_hash_is_a_standard_client() {
    let keys = parse("[[key]]\nname = \"app\"\nsha256 = \"HASH\"").unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!((key.name.as_str(), key.tenant.as_str()), ("app", "app"));
    assert_eq!((key.highest_tier, key.default_tier), (KeyTier::Standard, KeyTier::Standard));
    assert_eq!(key.above_highest, AboveHighest::Cap);
    assert_eq!(key.expires_unix_s, None);
    assert_eq!((key.sha256[0], key.sha256[31]), (0x6a, 0xd0));
}

#[test]
fn every_field_is_read() {
    let keys = parse(
        "[[key]]\nname = \"app\"\nsha256 = \"HASH\"\ntenant = \"shop\"\nhighest_tier = \"premium\"\n\
         default_tier = \"background\"\nabove_highest = \"refuse\"\nexpires = 1970-01-02",
    )
    .unwrap();
    let key = &keys[0];
    assert_eq!(key.tenant, "shop");
    assert_eq!((key.highest_tier, key.default_tier), (KeyTier::Premium, KeyTier::Background));
    assert_eq!(key.above_highest, AboveHighest::Refuse);
    assert_eq!(key.expires_unix_s, Some(86_400));
}

#[test]
fn the_default_tier_is_standard_or_the_highest_one_below_it() {
    let key = |tier: &str| {
        let text = format!("[[key]]\nname = \"a\"\nsha256 = \"HASH\"\nhighest_tier = \"{tier}\"");
        parse(&text).unwrap()[0].default_tier
    };
    assert_eq!(key("premium"), KeyTier::Standard);
    assert_eq!(key("background"), KeyTier::Background);
}

#[test]
fn dates_and_times_are_read_in_utc() {
    let expires = |date: &str| {
        let text = format!("[[key]]\nname = \"a\"\nsha256 = \"HASH\"\nexpires = {date}");
        parse(&text).map(|keys| keys[0].expires_unix_s)
    };
    assert_eq!(expires("1970-01-01T01:00:00Z"), Ok(Some(3_600)));
    assert_eq!(expires("1970-01-01T01:00:00+01:00"), Ok(Some(0)));
    assert_eq!(expires("1970-01-01T01:00:00"), Ok(Some(3_600)));
    assert_eq!(expires(&utc_text(3_600)), Ok(Some(3_600)), "{}", utc_text(3_600));
    assert!(expires("01:00:00").unwrap_err().contains("expires must be a date"));
}

#[test]
fn a_wrong_file_is_refused_with_the_key_and_the_field() {
    let one = "[[key]]\nname = \"a\"\nsha256 = \"HASH\"\n";
    let other = "[[key]]\nname = \"b\"\nsha256 = \"HASH\"\n";
    for (text, expected) in [
        (String::new(), "keys.toml: it has no [[key]]"),
        (
            format!("{one}SECRET = \"x\""),
            "keys.toml: line 4: not of the expected form: tables [[key]]",
        ),
        (
            format!("{one}above_highest = \"SECRET\""),
            "keys.toml: line 4: above_highest must be \"cap\" or \"refuse\"",
        ),
        (
            format!("{one}highest_tier = 1"),
            "line 4: highest_tier must be \"premium\", \"standard\"",
        ),
        (format!("{one}role = [\"SECRET\"]"), "line 4: role must be \"viewer\" or \"operator\""),
        (
            format!("{one}tokens_per_min = \"SECRET\""),
            "line 4: tokens_per_min must be a whole number",
        ),
        (format!("{one}max_live = -1"), "line 4: max_live must be a whole number"),
        (format!("{one}requests_per_min = 1.5"), "line 4: requests_per_min must be a whole number"),
        (format!("{one}share = \"SECRET\""), "line 4: share must be a number"),
        (format!("{one}expires = \"SECRET\""), "line 4: expires must be a date or a time without"),
        (
            format!("{one}may_tighten_targets = \"yes\""),
            "line 4: may_tighten_targets must be true or",
        ),
        (format!("{one}tenant = 5"), "line 4: tenant must be a text in quotes"),
        ("[[key]]\nname = [\"SECRET\"]".into(), "line 2: name must be a text in quotes"),
        (format!("{one}tenant = \"a\"\ntenant = \"b\""), "line 5: duplicate key"),
        ("key = \"SECRET\"".into(), "keys.toml: line 1: not of the expected form"),
        ("key = [\"SE`CRET\"]".into(), "keys.toml: line 1: not of the expected form"),
        ("SECRET = \"shop\"".into(), "keys.toml: line 1: not of the expected form"),
        ("SECRET".into(), "keys.toml: line 1:"),
        ("[[key]]\nname = \"a\"".into(), "keys.toml: line 1: missing field `sha256`"),
        (
            format!("[[key]]\nname = \"a\"\nsha256 = \"{EMPTY}\""),
            "key a: sha256 is the hash of an empty",
        ),
        (
            format!("{one}expires = 9999-12-31"),
            "key a: expires must be a date or a time before 9999-12-30",
        ),
        ("[[key]]\nname = \"a\"\nsha256 = \"12\"".into(), "key a: sha256 must be 64 hexadecimal"),
        (
            "[[key]]\nname = \"a b\"\nsha256 = \"HASH\"".into(),
            "key number 1: name must have 1 to 64",
        ),
        (format!("{one}tenant = \"\""), "key a: tenant must have"),
        (format!("{one}default_tier = \"premium\""), "key a: default_tier must not be above"),
        (format!("{one}{other}"), "key b: sha256 is the hash of two keys"),
        (format!("{one}{one}"), "key a: name is the name of two keys"),
        ("key = 1".into(), "keys.toml: line 1:"),
    ] {
        let why = refused(&text);
        assert!(why.contains(expected), "{text}\n{why}");
        assert!(!why.contains('\n') && !why.contains(HASH), "{why}");
        assert!(!why.contains("SECRET") && !why.contains("CRET"), "{why}");
    }
}

#[test]
fn a_file_that_is_missing_or_too_large_is_named() {
    let missing = read_keys(Path::new("/nowhere/keys.toml")).expect_err("missing").to_string();
    assert!(missing.starts_with("cannot read the keys file /nowhere/keys.toml"), "{missing}");
    let many = "[[key]]\nname = \"a\"\nsha256 = \"HASH\"\n".repeat(MAX_KEYS + 1);
    assert!(refused(&many).contains("it has 4097 keys; at most 4096 fit"));
    let folder = read_keys(Path::new("/")).expect_err("a folder").to_string();
    assert!(folder.ends_with("it is no regular file"), "{folder}");
}

#[test]
fn a_file_from_another_system_is_read_too() {
    let text =
        format!("\u{feff}[[key]]\r\nname = \"a\"\r\nsha256 = \"{}\"\r\n", HASH.to_uppercase());
    assert_eq!(parse(&text).unwrap()[0].sha256, parse_hash(HASH).unwrap());
    for digits in
        [&HASH[1..], &format!("{HASH}0"), &HASH.replace('6', "g"), &HASH.replace('6', "\u{0666}")]
    {
        assert_eq!(parse_hash(digits), None, "{digits}");
    }
}

#[test]
fn roles_and_limits_are_read_and_a_limit_of_zero_is_refused() {
    let text =
        |more: &str| format!("[[key]]\nname = \"a\"\nsha256 = \"{}\"\n{more}\n", "ab".repeat(32));
    let read = |more: &str| parse(&text(more)).map(|keys| keys[0].clone());
    let plain = read("").unwrap();
    assert_eq!((plain.role, plain.requests_per_min, plain.max_live), (None, None, None));
    let key =
        read("role = \"operator\"\nrequests_per_min = 60\ntokens_per_min = 7000\nmax_live = 4")
            .unwrap();
    assert_eq!(key.role, Some(Role::Operator));
    assert_eq!(
        (key.requests_per_min, key.tokens_per_min, key.max_live),
        (Some(60), Some(7000), Some(4))
    );
    assert!(Role::Operator > Role::Viewer, "an operator may do all that a viewer may");
    for field in ["requests_per_min", "tokens_per_min", "max_live"] {
        let error = read(&format!("{field} = 0")).unwrap_err();
        assert!(error.contains(field) && error.contains("from 1"), "{error}");
    }
    assert!(read("role = \"owner\"").is_err());
}

#[test]
fn the_keys_of_a_tenant_have_one_share_whichever_states_it() {
    let key = |name: &str, more: &str| {
        let hash = format!("{:02x}", name.as_bytes()[0]).repeat(32);
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n{more}\n")
    };
    let read = |keys: &[String]| parse(&keys.concat());
    let of_shop = |share: &str| format!("tenant = \"shop\"\n{share}");
    let (three, silent) = (of_shop("share = 3"), of_shop(""));
    let keys =
        read(&[key("a", &silent), key("b", &three), key("c", &three), key("d", "")]).unwrap();
    assert_eq!(keys.iter().map(|key| key.share).collect::<Vec<f64>>(), [3.0, 3.0, 3.0, 1.0]);
    let other = read(&[key("a", &three), key("b", &of_shop("share = 2.5"))]).unwrap_err();
    let expected = "key b: share is 2.5, but key a states 3 for the same tenant, shop";
    assert!(other.contains(expected), "{other}");
    for share in ["0", "0.001", "101", "-1", "nan", "inf"] {
        let error = read(&[key("a", &format!("share = {share}"))]).unwrap_err();
        assert!(error.contains("key a: share must be a number from 0.01 to 100"), "{error}");
    }
    assert!(read(&[key("a", "share = \"much\"")]).unwrap_err().contains("line 4"));
}

#[test]
fn a_key_says_whether_it_may_tighten_or_leaves_it_to_the_setting() {
    let right = |more: &str| {
        let text = format!("[[key]]\nname = \"a\"\nsha256 = \"HASH\"\n{more}");
        parse(&text).unwrap()[0].may_tighten_targets
    };
    assert_eq!(right(""), None);
    assert_eq!(right("may_tighten_targets = true"), Some(true));
    assert_eq!(right("may_tighten_targets = false"), Some(false));
}
