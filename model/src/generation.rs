//! Sampling parameters that a checkpoint recommends: `generation_config.json` of a Hugging Face directory, or the keys
//! `general.sampling.*` of a GGUF file.

use crate::gguf::GgufFile;
use crate::source::ModelFiles;
use crate::tokenizer::{TokenizerError, read_config};
use std::ops::RangeInclusive;
use tiercel_device::SamplingParams;

/// A sampling parameter that a checkpoint may recommend: its names in both file formats, and the range of usable
/// values.
struct Parameter {
    json: &'static str,
    gguf: &'static str,
    range: RangeInclusive<f64>,
    set: fn(&mut SamplingParams, f64),
}

const PARAMETERS: [Parameter; 5] = [
    Parameter {
        json: "temperature",
        gguf: "general.sampling.temp",
        range: 0.0..=2.0,
        set: |sampling, value| sampling.temperature = value as f32,
    },
    Parameter {
        json: "top_k",
        gguf: "general.sampling.top_k",
        // A recommended top-k of -1 or 0 means that top-k is off.
        range: -1.0..=u32::MAX as f64,
        set: |sampling, value| sampling.top_k = value.max(0.0) as u32,
    },
    Parameter {
        json: "top_p",
        gguf: "general.sampling.top_p",
        range: 0.0..=1.0,
        // Replace a recommended top-p of 0, which keeps only the best token, by the smallest positive number, which has
        // the same effect.
        set: |sampling, value| sampling.top_p = (value as f32).max(f32::MIN_POSITIVE),
    },
    Parameter {
        json: "min_p",
        gguf: "general.sampling.min_p",
        range: 0.0..=1.0,
        set: |sampling, value| sampling.min_p = value as f32,
    },
    Parameter {
        json: "repetition_penalty",
        gguf: "general.sampling.penalty_repeat",
        range: 0.01..=10.0,
        set: |sampling, value| sampling.repetition_penalty = value as f32,
    },
];

/// Sampling parameters that a checkpoint recommends.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommended {
    /// Recommended parameters. A parameter that the checkpoint does not state, or whose value is not usable, is as in
    /// [`SamplingParams::default`].
    pub sampling: SamplingParams,
    /// Messages about recommended sampling parameters that are out of range and ignored, one sentence each.
    pub ignored: Vec<String>,
}

impl Recommended {
    /// Reads the sampling parameters that a model's files recommend. Parameters that the files do not state, or whose
    /// values are not usable, are the defaults.
    ///
    /// # Errors
    /// The GGUF file cannot be read, or `generation_config.json` exists and cannot be read.
    pub fn from_files(files: &ModelFiles) -> Result<Recommended, TokenizerError> {
        match files {
            ModelFiles::Gguf(path) => {
                let file = GgufFile::open(path)?;
                let metadata = file.metadata();
                // A recommended sampling parameter of the wrong type counts as absent.
                Ok(Recommended::read(|parameter| {
                    let value = metadata.f32(parameter.gguf).ok().flatten().map(f64::from);
                    (parameter.gguf, value)
                }))
            }
            ModelFiles::HfDir(dir) => {
                let config = read_config(&dir.join("generation_config.json"))?.unwrap_or_default();
                let mut read = Recommended::read(|parameter| {
                    (parameter.json, config[parameter.json].as_f64())
                });
                // `do_sample: false` means greedy decoding; the file's temperature is then ignored.
                if config["do_sample"].as_bool() == Some(false) {
                    read.sampling.temperature = 0.0;
                }
                Ok(read)
            }
        }
    }

    fn read(stated: impl Fn(&Parameter) -> (&'static str, Option<f64>)) -> Recommended {
        let mut read = Recommended { sampling: SamplingParams::default(), ignored: Vec::new() };
        for parameter in &PARAMETERS {
            let (name, Some(value)) = stated(parameter) else { continue };
            let (low, high) = (parameter.range.start(), parameter.range.end());
            if parameter.range.contains(&value) {
                (parameter.set)(&mut read.sampling, value);
            } else {
                read.ignored.push(format!(
                    "the checkpoint recommends {name} = {value}, which is ignored: allowed is {low} \
                     to {high}"
                ));
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::build::{Builder, Value};

    fn of_json(text: &str) -> Result<Recommended, TokenizerError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        Recommended::from_files(&ModelFiles::HfDir(dir.path().to_owned()))
    }

    #[test]
    fn a_directory_recommends_what_its_generation_config_states() {
        let read = of_json(
            "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \
             \"eos_token_id\": [2], \"min_p\": null}",
        )
        .unwrap();
        let expected = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            ..SamplingParams::default()
        };
        assert_eq!(read, Recommended { sampling: expected, ignored: Vec::new() });
        let nothing = tempfile::tempdir().unwrap();
        let read = Recommended::from_files(&ModelFiles::HfDir(nothing.path().to_owned())).unwrap();
        assert_eq!(read.sampling, SamplingParams::default());
        assert!(of_json("{\"temperature\": 0.6").is_err());
    }

    #[test]
    fn a_directory_that_does_not_sample_is_greedy() {
        let temperature = |text| of_json(text).unwrap().sampling.temperature;
        assert_eq!(temperature("{\"do_sample\": false, \"temperature\": 0.6}"), 0.0);
        assert_eq!(temperature("{\"do_sample\": false}"), 0.0);
        assert_eq!(temperature("{\"do_sample\": true}"), 1.0);
        assert_eq!(temperature("{\"do_sample\": \"no\", \"temperature\": 0.6}"), 0.6);
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let read = of_json("{\"temperature\": 9.5, \"top_k\": -1, \"top_p\": \"high\"}").unwrap();
        assert_eq!(read.sampling, SamplingParams::default());
        assert_eq!(
            read.ignored,
            ["the checkpoint recommends temperature = 9.5, which is ignored: allowed is 0 to 2"]
        );
    }

    #[test]
    fn a_gguf_file_recommends_by_its_keys() {
        let file = Builder::default()
            .entry("general.sampling.temp", Value::F32(0.25))
            .entry("general.sampling.penalty_repeat", Value::F32(1.5))
            .save();
        let read =
            Recommended::from_files(&ModelFiles::Gguf(file.path().to_owned())).unwrap().sampling;
        let expected = SamplingParams {
            temperature: 0.25,
            repetition_penalty: 1.5,
            ..SamplingParams::default()
        };
        assert_eq!(read, expected);
    }
}
