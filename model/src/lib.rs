//! Weights, tokenizer, chat template, the forward pass and sampling.
