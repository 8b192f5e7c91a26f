//! Roles of a decoder's tensors: the name of each in either file format, and the shape that it must have.

use crate::arch::ModelConfig;

/// Role of a weight tensor in the model, such as the embedding or the q matrix of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Embedding matrix, `[vocab, hidden]`.
    Embedding,
    /// Weight of the final norm, `[hidden]`.
    FinalNorm,
    /// Output matrix, `[vocab, hidden]`; absent if the embeddings are tied.
    LmHead,
    /// A weight tensor of the layer with this number.
    Layer(usize, LayerRole),
}

/// Role of a weight tensor within a layer, such as the q matrix or the MLP norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerRole {
    AttentionNorm,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    KNorm,
    MlpNorm,
    Gate,
    Up,
    Down,
}

use LayerRole::*;

/// Returns the names of a layer's tensor in a Hugging Face checkpoint and in a GGUF file, without the prefix for the
/// layer.
fn layer_names(role: LayerRole) -> (&'static str, &'static str) {
    match role {
        AttentionNorm => ("input_layernorm.weight", "attn_norm.weight"),
        Q => ("self_attn.q_proj.weight", "attn_q.weight"),
        K => ("self_attn.k_proj.weight", "attn_k.weight"),
        V => ("self_attn.v_proj.weight", "attn_v.weight"),
        O => ("self_attn.o_proj.weight", "attn_output.weight"),
        QBias => ("self_attn.q_proj.bias", "attn_q.bias"),
        KBias => ("self_attn.k_proj.bias", "attn_k.bias"),
        VBias => ("self_attn.v_proj.bias", "attn_v.bias"),
        OBias => ("self_attn.o_proj.bias", "attn_output.bias"),
        QNorm => ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        KNorm => ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        MlpNorm => ("post_attention_layernorm.weight", "ffn_norm.weight"),
        Gate => ("mlp.gate_proj.weight", "ffn_gate.weight"),
        Up => ("mlp.up_proj.weight", "ffn_up.weight"),
        Down => ("mlp.down_proj.weight", "ffn_down.weight"),
    }
}

impl Role {
    /// Returns the name of the tensor in a Hugging Face checkpoint.
    pub(crate) fn hf_name(self) -> String {
        match self {
            Role::Embedding => "model.embed_tokens.weight".to_owned(),
            Role::FinalNorm => "model.norm.weight".to_owned(),
            Role::LmHead => "lm_head.weight".to_owned(),
            Role::Layer(layer, role) => format!("model.layers.{layer}.{}", layer_names(role).0),
        }
    }

    /// Returns the name of the tensor in a GGUF file.
    pub(crate) fn gguf_name(self) -> String {
        match self {
            Role::Embedding => "token_embd.weight".to_owned(),
            Role::FinalNorm => "output_norm.weight".to_owned(),
            Role::LmHead => "output.weight".to_owned(),
            Role::Layer(layer, role) => format!("blk.{layer}.{}", layer_names(role).1),
        }
    }

    /// Returns the shape that the tensor must have, outermost dimension first: `[n, k]` of a matrix, `[n]` of a vector.
    pub(crate) fn shape(self, config: &ModelConfig) -> Vec<usize> {
        let (hidden, inter) = (config.hidden_size, config.intermediate_size);
        match self {
            Role::Embedding | Role::LmHead => vec![config.vocab_size, hidden],
            Role::FinalNorm => vec![hidden],
            Role::Layer(_, role) => match role {
                AttentionNorm | MlpNorm | OBias => vec![hidden],
                Q => vec![config.q_cols(), hidden],
                K | V => vec![config.kv_cols(), hidden],
                O => vec![hidden, config.q_cols()],
                QBias => vec![config.q_cols()],
                KBias | VBias => vec![config.kv_cols()],
                QNorm | KNorm => vec![config.head_dim],
                Gate | Up => vec![inter, hidden],
                Down => vec![hidden, inter],
            },
        }
    }

    /// Returns the roles of all tensors that a model with this configuration must have.
    pub(crate) fn required(config: &ModelConfig) -> Vec<Role> {
        let mut roles = vec![Role::Embedding, Role::FinalNorm];
        if !config.tied_embeddings {
            roles.push(Role::LmHead);
        }
        let mut layer_roles = vec![AttentionNorm, Q, K, V, O, MlpNorm, Gate, Up, Down];
        if config.qkv_bias {
            layer_roles.extend([QBias, KBias, VBias]);
        }
        if config.output_bias {
            layer_roles.push(OBias);
        }
        if config.head_norms {
            layer_roles.extend([QNorm, KNorm]);
        }
        for layer in 0..config.layers() {
            roles.extend(layer_roles.iter().map(|&role| Role::Layer(layer, role)));
        }
        roles
    }
}
