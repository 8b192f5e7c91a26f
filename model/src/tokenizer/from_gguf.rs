//! Builds tokenizers from the metadata of GGUF files.

use super::encoder::{Around, Encoder};
use super::pretokenize::Family;
use super::spm::{Piece, PieceKind, SPACE, SpmEncoder};
use super::vocab::{ByteChars, byte_token};
use super::{SpecialTokens, Tokenizer, TokenizerError, Vocab};
use crate::gguf::{GgufError, GgufFile, Metadata};
use tiercel_device::TokenId;
use tokenizers::AddedToken;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";

/// Names of control tokens that end a turn or a document in common chat formats. GGUF files often name only one of them
/// as an end token.
const END_NAMES: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
];

/// Vocabulary of a GGUF file as read from its metadata, before the kind of tokenizer is known.
struct Tokens<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<PieceKind>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &Metadata<'a>) -> Result<Tokens<'a>, TokenizerError> {
        let texts = metadata.required(TOKENS, Metadata::strings)?;
        if texts.is_empty() {
            return Err(TokenizerError::Metadata("it has no tokens".into()));
        }
        let mut kinds = match metadata.i32s("tokenizer.ggml.token_type")? {
            Some(kinds) if kinds.len() == texts.len() => kinds.into_iter().map(kind).collect(),
            Some(kinds) => {
                let message = format!("{} token types for {} tokens", kinds.len(), texts.len());
                return Err(TokenizerError::Metadata(message));
            }
            None => vec![PieceKind::Normal; texts.len()],
        };
        // Correct the type of the chat format's control tokens, which some converters write as user-defined tokens.
        for (kind, text) in kinds.iter_mut().zip(&texts) {
            if *kind == PieceKind::UserDefined && is_markup(text) {
                *kind = PieceKind::Control;
            }
        }
        Ok(Tokens { texts, kinds })
    }

    fn vocab(&self, bytes: impl Fn(&str, PieceKind) -> Vec<u8>) -> Vocab {
        let mut vocab = Vocab::default();
        for (text, &kind) in self.texts.iter().zip(&self.kinds) {
            vocab.push(&bytes(text, kind), kind == PieceKind::Control);
        }
        vocab
    }
}

/// Returns whether the text of a user-defined token looks like a control token of a chat format, such as `<|im_end|>`.
fn is_markup(text: &str) -> bool {
    END_NAMES.contains(&text) || (text.starts_with("<|") && text.ends_with("|>"))
}

fn kind(id: i32) -> PieceKind {
    match id {
        // Types 2 and 3 of ggml are the unknown token and control tokens.
        2 | 3 => PieceKind::Control,
        4 => PieceKind::UserDefined,
        5 => PieceKind::Unused,
        6 => PieceKind::Byte,
        _ => PieceKind::Normal,
    }
}

/// Builds the tokenizer that a GGUF file describes.
pub(super) fn read(file: &GgufFile) -> Result<Tokenizer, TokenizerError> {
    let metadata = file.metadata();
    let tokens = Tokens::read(&metadata)?;
    match metadata.required(MODEL, Metadata::str)? {
        "gpt2" => byte_level(&metadata, &tokens),
        "llama" => sentence_piece(&metadata, &tokens),
        other => Err(TokenizerError::Unsupported {
            what: format!("the GGUF tokenizer `{other}`"),
            instead: "use the model's Hugging Face directory with its tokenizer.json",
        }),
    }
}

fn byte_level(metadata: &Metadata<'_>, tokens: &Tokens<'_>) -> Result<Tokenizer, TokenizerError> {
    let family = Family::named(metadata.str("tokenizer.ggml.pre")?)?;
    let encoder = bpe_encoder(metadata, tokens, &family)?;
    let chars = ByteChars::new();
    let vocab = tokens.vocab(|text, kind| match kind {
        PieceKind::Normal | PieceKind::Unused => chars.decode(text),
        _ => text.as_bytes().to_vec(),
    });
    let special = special_tokens(metadata, tokens)?;
    let around = around(metadata, &special, family.add_bos)?;
    let encoder = Encoder::from_hugging_face(encoder, Some(around));
    Tokenizer::new(encoder, vocab, special)
}

fn bpe_encoder(
    metadata: &Metadata<'_>,
    tokens: &Tokens<'_>,
    family: &Family,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let unusable = |error: tokenizers::Error| TokenizerError::Metadata(error.to_string());
    let mut vocab = bpe::Vocab::default();
    for (id, text) in tokens.texts.iter().enumerate() {
        vocab.entry((*text).to_owned()).or_insert(id as TokenId);
    }
    let merges = metadata.required(MERGES, Metadata::strings)?.into_iter().map(merge_pair);
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let model = bpe::BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(family.ignore_merges)
        .build()
        .map_err(unusable)?;
    let mut encoder = tokenizers::Tokenizer::new(model);
    encoder.with_normalizer(family.normalizer()).map_err(unusable)?;
    encoder.with_pre_tokenizer(Some(family.pre_tokenizer()?));
    encoder.with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::default())));
    let whole = tokens.texts.iter().zip(&tokens.kinds).filter_map(|(text, kind)| {
        let special = match kind {
            PieceKind::Control => true,
            PieceKind::UserDefined => false,
            _ => return None,
        };
        Some(AddedToken::from(*text, special).normalized(false))
    });
    encoder.add_tokens(whole).map_err(unusable)?;
    Ok(encoder)
}

/// Splits an entry `left right` of the BPE merge list into its two tokens, at the first space after its first
/// character, because a token may in theory begin with a space.
fn merge_pair(merge: &str) -> Result<(String, String), TokenizerError> {
    let invalid = || TokenizerError::Metadata(format!("the merge {merge:?} is not two tokens"));
    let first = merge.chars().next().ok_or_else(invalid)?.len_utf8();
    let cut = merge[first..].find(' ').ok_or_else(invalid)? + first;
    Ok((merge[..cut].to_owned(), merge[cut + 1..].to_owned()))
}

fn sentence_piece(
    metadata: &Metadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<Tokenizer, TokenizerError> {
    let scores = metadata.required("tokenizer.ggml.scores", Metadata::f32s)?;
    if scores.len() != tokens.texts.len() {
        let message = format!("{} scores for {} tokens", scores.len(), tokens.texts.len());
        return Err(TokenizerError::Metadata(message));
    }
    let pieces: Vec<Piece<'_>> = (tokens.texts.iter().zip(&tokens.kinds).zip(&scores))
        .map(|((&text, &kind), &score)| Piece { text, score, kind })
        .collect();
    let special = special_tokens(metadata, tokens)?;
    let add_space = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let encoder = SpmEncoder::new(&pieces, special.unknown, add_space);
    let encoder = encoder.map_err(TokenizerError::Metadata)?;
    let mut vocab = tokens.vocab(|text, kind| match (kind, byte_token(text)) {
        (PieceKind::Byte, Some(byte)) => vec![byte],
        (PieceKind::Control, _) => text.as_bytes().to_vec(),
        _ => text.replace(SPACE, " ").into_bytes(),
    });
    vocab.strips_leading_space = add_space;
    let around = around(metadata, &special, true)?;
    let encoder = Encoder::from_sentence_piece(encoder, around);
    Tokenizer::new(encoder, vocab, special)
}

fn special_tokens(
    metadata: &Metadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<SpecialTokens, TokenizerError> {
    let id = |name: &str| -> Result<Option<TokenId>, GgufError> {
        let id = metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
        // Ignore ids outside the vocabulary: some converters write 2^32 - 1 or the vocabulary's size for a special
        // token that does not exist.
        Ok(id.filter(|&id| (id as usize) < tokens.texts.len()))
    };
    let mut special = SpecialTokens {
        bos: id("bos")?,
        eos: id("eos")?,
        unknown: id("unknown")?,
        padding: id("padding")?,
        ends: Vec::new(),
    };
    special.ends.extend([special.eos, id("eot")?, id("eom")?].into_iter().flatten());
    for (at, text) in tokens.texts.iter().enumerate() {
        if tokens.kinds[at] == PieceKind::Control && END_NAMES.contains(text) {
            special.ends.push(at as TokenId);
        }
    }
    special.ends.sort_unstable();
    special.ends.dedup();
    Ok(special)
}

fn around(
    metadata: &Metadata<'_>,
    special: &SpecialTokens,
    bos_by_default: bool,
) -> Result<Around, TokenizerError> {
    let add_bos = metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(bos_by_default);
    let add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    Ok(Around { before: special.bos.filter(|_| add_bos), after: special.eos.filter(|_| add_eos) })
}
