//! Tests of calibration: a server reports the times of its steps, and the load client fits a device profile to them.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_benches::{CalibrateError, Calibration, Target, calibrate, calibration_workload};
use tiercel_device::MockProfile;
use tiercel_tests::TestServer;
use tiercel_workload::Workload;

fn measure(server: &TestServer, duration_s: f64) -> Result<Calibration, CalibrateError> {
    let mut workload = Workload { duration_s, drain_s: 10.0, ..calibration_workload() };
    workload.classes.truncate(2);
    workload.classes[1].start_s = 0.1;
    let target = Target { url: format!("http://{}", server.address()), ..Target::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(calibrate(&workload, &target, |_| ()))
}

#[test]
fn a_server_tells_its_last_steps_to_whom_may_know() {
    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["secret".into()]);
    assert_eq!(server.get("/debug/steps").status, 401);
    let key = [("authorization", "Bearer secret")];
    let ask = |path: &str| server.connect().request("GET", path, &key, b"");
    let before = ask("/debug/steps").json();
    assert_eq!(before["device"]["block_size"], 16);
    assert_eq!(before["measured"]["step_base_us"], 200.0);
    assert_eq!(before["settings"]["scheduler"]["max_num_seqs"], 64);
    let last = |page: &Value| page["steps"].as_array().unwrap().last().unwrap()["step"].clone();
    let warm_up = last(&before);
    let body = json!({"prompt": "twenty-one characters", "max_tokens": 5, "ignore_eos": true});
    let body = serde_json::to_vec(&body).unwrap();
    server.connect().request("POST", "/v1/completions", &key, &body);
    let after = ask(&format!("/debug/steps?after={warm_up}")).json();
    let steps = after["steps"].as_array().unwrap();
    let prompts: u64 = steps.iter().map(|step| step["prefill_tokens"].as_u64().unwrap()).sum();
    let decodes: u64 = steps.iter().map(|step| step["decode_tokens"].as_u64().unwrap()).sum();
    assert_eq!((prompts, decodes), (21, 4), "{after}");
    assert_eq!(ask(&format!("/debug/steps?after={}", last(&after))).json()["steps"], json!([]));
    for wrong in ["after=x", "after=-1", "before=3"] {
        let error = ask(&format!("/debug/steps?{wrong}")).error();
        assert_eq!(error["code"], "invalid_query", "{error}");
        assert!(error["message"].as_str().unwrap().contains("after=STEP"), "{error}");
    }
    server.finish();
}

#[test]
fn a_profile_is_made_of_a_server_and_can_be_read_again() {
    let server = TestServer::mock(|settings| settings.engine.scheduler.max_num_seqs = 33);
    let calibrated = measure(&server, 2.0).unwrap();
    let profile = &calibrated.profile;
    assert_eq!(MockProfile::parse(&profile.to_toml()).unwrap(), *profile);
    assert_eq!(profile.server.max_num_seqs, Some(33));
    let tiny = MockProfile::named("tiny").unwrap();
    assert_eq!(profile.told, Some(tiny.device_profile()));
    assert_eq!((profile.block_size, profile.device_blocks), (tiny.block_size, tiny.device_blocks));
    assert_eq!(profile.kv_bytes_per_token, tiny.kv_bytes_per_token);
    assert!(calibrated.steps > 200 && profile.step_base_us > 0.0, "{calibrated:?}");
    server.finish();
}

#[test]
fn a_load_that_is_too_short_says_so() {
    let server = TestServer::slow(|_| ());
    let error = measure(&server, 0.5).unwrap_err().to_string();
    assert!(error.contains("at least 200 are needed"), "{error}");
    server.finish();
}
