//! Tests of quick compilations: any result is the result of a full compilation.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod common;

use common::hostile::hostile_sources;
use common::{grammars, random_output, schemas, with_stack};
use tiercel_grammar::{GrammarError, Source};

/// Number of tokens of the outputs that are compared.
const TOKENS: usize = 40;

#[test]
fn a_quick_result_is_the_full_result() {
    let (quick, slow) = with_stack(|| {
        let (mut quick, mut slow) = (0, Vec::new());
        let schemas =
            schemas().into_iter().map(|(name, schema)| (name, Source::JsonSchema(schema)));
        let (one, other) = (grammars(), grammars());
        for (name, source) in schemas.chain(hostile_sources()) {
            let Some(result) = one.compile_quickly(&source) else {
                slow.push(name);
                continue;
            };
            quick += 1;
            match (result, other.compile(&source)) {
                (Ok(quick), Ok(full)) => {
                    let output = |grammar| random_output(grammar, 1, TOKENS);
                    assert_eq!(output(&*quick.constraint), output(&*full.constraint), "{name}");
                }
                (Err(quick), Err(full)) => assert_eq!(quick, full, "{name}"),
                (quick, full) => panic!("{name}: {quick:?} and {full:?}"),
            }
        }
        (quick, slow)
    });
    println!("{quick} compiled quickly, not quickly: {slow:?}");
    assert!(quick > 400 && slow.len() > 10, "{quick} {slow:?}");
}

#[test]
fn a_refused_source_is_remembered() {
    with_stack(|| {
        let grammars = grammars();
        let (_, source) = hostile_sources().into_iter().find(|(name, _)| name == "lark 8").unwrap();
        assert!(grammars.known(&source).is_none());
        assert!(grammars.compile_quickly(&source).is_none());
        let refused = grammars.compile(&source).unwrap_err();
        assert!(matches!(refused, GrammarError::TooComplex(_)), "{refused}");
        assert_eq!(grammars.known(&source).unwrap().unwrap_err(), refused);
    });
}
