import json
import os
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmgrpo import load_plugin
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum
from mmgrpo.types import Decoded

FIELD = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")) / "aesthetic"


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


def tag(text):
    return f"<think>hm</think><answer>{text}</answer>"


class Colours:
    """An encoder in which pictures are their mean colour and texts the colours that they name."""

    names = ("red", "green", "blue")

    def images(self, pictures):
        rows = [torch.tensor(np.asarray(p).reshape(-1, 3).mean(0) / 255.0 + 1e-6) for p in pictures]
        return nn.functional.normalize(torch.stack(rows).float(), dim=-1)

    def texts(self, texts):
        rows = [torch.tensor([text.count(name) + 1e-6 for name in self.names]) for text in texts]
        return nn.functional.normalize(torch.stack(rows), dim=-1)


def colour(name, size=8):
    return Image.new("RGB", (size, size), name)


RED, LIME, BLUE = colour("red"), colour("#00ff00"), colour("blue")


# CLIP


def test_clip_score_matches_captions_with_their_own_picture():
    f = shipped("clip.py:ClipScore", encoder=Colours(), low=0.0, high=1.0)
    texts = [tag("a red ball"), tag("a blue ball"), "red", tag(""), tag("red. blue.")]
    scores = f(completions=texts, images=[[RED], [RED], [], [RED], [RED]])
    assert scores == [pytest.approx(1.0), pytest.approx(0.0, abs=1e-4), None, 0.0, pytest.approx(0.5, abs=1e-4)]
    best = shipped("clip.py:ClipScore", encoder=Colours(), low=0.0, high=1.0, over="max")
    assert best(completions=[tag("red. blue.")], images=[[RED]]) == [pytest.approx(1.0)]


def test_clip_score_is_rescaled_and_clipped():
    f = shipped("clip.py:ClipScore", encoder=Colours(), low=0.5, high=0.75)
    assert f(completions=["red", "red green", "blue"], images=[[RED]] * 3) == [
        1.0,
        pytest.approx(0.8284, abs=1e-3),
        0.0,
    ]


def test_contrast_asks_whether_a_caption_picks_its_own_picture():
    f = shipped("clip.py:ClipScore", encoder=Colours(), contrast=True)
    scores = f(completions=["red", "blue", "blue"], images=[[RED], [RED], [BLUE]])
    assert scores == [pytest.approx(1.0), pytest.approx(0.0, abs=1e-6), pytest.approx(1.0)]
    assert not load_reward(f, base=Path()).facts.pure
    assert load_reward(shipped("clip.py:ClipScore", encoder=Colours()), base=Path()).facts.pure


def test_long_captions_are_cut_into_pieces_that_clip_can_read():
    sentences = load_plugin("clip.py", beside=__file__).sentences
    pieces = sentences("word " * 100 + ". " + "x" * 5000 + "。第二句")
    assert all(len(piece.split()) <= 40 and len(piece) <= 300 for piece in pieces)
    assert pieces[-1] == "第二句"
    assert sentences(" . \n!") == []


def test_open_clip_encodes_pictures_and_texts_with_any_of_its_models(tmp_path):
    open_clip = pytest.importorskip("open_clip", reason="needs the extra clip")
    config = {
        "embed_dim": 768,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    (tmp_path / "mmgrpo-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    f = shipped("clip.py:ClipScore", model="mmgrpo-tiny", pretrained=None, device="cpu", low=-1.0, high=1.0)
    vectors = f.encoder.images([RED, BLUE])
    assert vectors.shape == (2, 768)
    assert vectors.norm(dim=-1).tolist() == pytest.approx([1.0, 1.0])
    long, short = tag("cube " * 500), tag("a red cube")
    scores = f(completions=[short, short, long], images=[[RED], [BLUE], [RED]])
    assert scores[0] != scores[1]
    assert all(0.0 <= score <= 1.0 for score in scores)


def byte_tokenizer(folder, kind="bert"):
    """A real tokenizer of a hundred characters, saved to a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {c: i for i, c in enumerate([*special, *string.printable])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        eos_token="[SEP]", bos_token="[CLS]", model_max_length=64,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return tokenizer


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def test_clip_of_transformers_gives_its_own_cosines(tmp_path):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    tokenizer = byte_tokenizer(tmp_path)
    text = {**SMALL, "vocab_size": 120, "max_position_embeddings": 64, "eos_token_id": 3}
    vision = {**SMALL, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    model.save_pretrained(tmp_path)
    pictures = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(image_processor=pictures, tokenizer=tokenizer).save_pretrained(tmp_path)
    f = shipped("clip.py:ClipScore", model=str(tmp_path), backend="transformers", device="cpu", low=-1.0, high=1.0)
    scores = f(completions=[tag("a red cube"), tag("blue")], images=[[RED], [BLUE]])
    with torch.inference_mode():
        for score, words, picture in zip(scores, ("a red cube", "blue"), (RED, BLUE), strict=True):
            inputs = f.encoder.processor(text=[words], images=[picture], return_tensors="pt", padding=True)
            out = model(**inputs)
            cosine = float(out.logits_per_image / model.logit_scale.exp())
            assert score == pytest.approx((cosine + 1) / 2, abs=1e-5)


# Aesthetics


@pytest.mark.skipif(not FIELD.is_dir(), reason=f"the heads and embeddings are not in {FIELD}")
def test_aesthetic_heads_give_the_known_scores_of_the_sample_embeddings():
    head_of = load_plugin("aesthetic.py", beside=__file__).AestheticHead
    expected = {k: v for k, v in json.loads((FIELD / "expected_scores.json").read_text()).items() if k != "note"}
    assert len(expected) == 3
    for name, scores in expected.items():
        head = head_of(FIELD / name)
        for embedding, score in scores.items():
            [got] = head(np.load(FIELD / embedding).reshape(1, -1)).tolist()
            assert got == pytest.approx(score, abs=1e-3), (name, embedding)


@pytest.fixture
def head(tmp_path):
    """A head that likes red and dislikes blue: red 8, green 5.5, blue 3."""
    torch.save({"weight": torch.tensor([[2.5, 0.0, -2.5]]), "bias": torch.tensor([5.5])}, tmp_path / "head.pth")
    return str(tmp_path / "head.pth")


def test_a_deep_head_equals_its_layers_one_by_one(tmp_path):
    layers = nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 4), nn.Linear(4, 1)).eval()
    torch.save({f"layers.{k}": v for k, v in layers.state_dict().items()}, tmp_path / "mlp.pth")
    head = load_plugin("aesthetic.py", beside=__file__).AestheticHead(tmp_path / "mlp.pth")
    embeddings = torch.randn(7, 6)
    expected = layers(nn.functional.normalize(embeddings, dim=-1)).squeeze(-1)
    assert torch.allclose(head(embeddings).float(), expected, atol=1e-5)


def test_aesthetic_score_is_rescaled_and_says_where_the_weights_should_be(head, tmp_path):
    f = shipped("aesthetic.py:AestheticScore", weights=head, encoder=Colours())
    scores = f(completions=["a"] * 4, images=[[RED], [LIME], [BLUE], []])
    assert scores == [pytest.approx(1.0), pytest.approx(0.5), pytest.approx(0.0, abs=1e-4), None]
    with pytest.raises(ValueError, match=r"nowhere\.pth"):
        shipped("aesthetic.py:AestheticScore", weights=str(tmp_path / "nowhere.pth"), encoder=Colours())


def vision(head, **args):
    clip = {"encoder": Colours(), "low": 0.0, "high": 1.0}
    return shipped("vision.py:VisionReward", clip=clip, aesthetic={"weights": head, "encoder": Colours()}, **args)


def test_vision_reward_of_captions_is_the_recipe_and_its_picture_term_cancels(head):
    f = vision(head)
    group = pasted_group([tag("red"), tag("blue")], media=[Decoded(kind="image", data=RED)])
    scorer = RewardSum.from_config([], Path(), [f])
    [scored] = scorer.score([group])
    assert scored.totals.tolist() == pytest.approx([0.6 + 0.4, 0.4], abs=1e-3)
    alone = RewardSum.from_config([], Path(), [vision(head, aesthetic_weight=0.0)]).score([group])[0].totals
    assert torch.allclose(scored.totals - scored.totals.mean(), alone - alone.mean(), atol=1e-9)


def test_vision_reward_of_ratings_and_pairs(head):
    rate = vision(head, mode="rating")
    scores = rate(
        completions=[tag("8"), tag("5.5"), tag("red"), tag("8")], images=[[RED]] * 3 + [[]], answer=[None] * 4
    )
    assert scores == [pytest.approx(1.0, abs=1e-3), pytest.approx(0.5, abs=1e-3), 0.0, None]
    pair = vision(head, mode="pair")
    scores = pair(
        completions=[tag("1"), tag("2"), tag("1"), tag("1")],
        images=[[RED, BLUE], [RED, BLUE], [RED, colour("red")], [RED]],
        answer=[None] * 4,
    )
    assert scores == [1.0, 0.0, None, None]


def test_vision_reward_of_rendered_pictures_scores_what_was_made(head):
    f = vision(head, mode="rendered", render="render.py:svg")
    drawing = '<svg width="16" height="16"><rect width="16" height="16" fill="{}"/></svg>'
    texts = [tag(drawing.format("red")), tag(drawing.format("blue")), "nothing"]
    scores = f(completions=texts, images=[[], [], []], answer=["red"] * 3)
    assert scores == [pytest.approx(1.0, abs=1e-3), pytest.approx(0.0, abs=1e-3), 0.0]
    own = vision(head, mode="rendered", render=lambda completion, images: RED if "x" in completion else None)
    assert own(completions=["x", "y"], images=[[], []], answer=["red", "red"]) == [pytest.approx(1.0, abs=1e-3), 0.0]
    with pytest.raises(Exception, match="render goes with"):
        vision(head, mode="rendered")


def test_both_terms_of_the_vision_reward_share_one_clip_where_they_name_the_same():
    same = load_plugin("vision.py", beside=__file__)._same_model
    clip = {"model": "ViT-L-14-quickgelu", "pretrained": "openai"}
    assert same(clip, {"weights": "x"})
    assert not same({**clip, "model": "ViT-B-32"}, {"weights": "x"})
    assert not same(clip, {"weights": "x", "model": "ViT-B-32"})


# Learned rewards


def test_a_reward_model_scores_prompt_and_completion(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = byte_tokenizer(tmp_path)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=120, max_position_embeddings=64, num_labels=1, **SMALL)
    )
    model.eval().save_pretrained(tmp_path)
    f = shipped("reward_model.py:RewardModel", model=str(tmp_path), batch_size=2, max_length=64)
    group = pasted_group(["three", "four", "a much longer answer"], problem="how many?")
    [scored] = RewardSum.from_config([], Path(), [f]).score([group])
    with torch.inference_mode():
        alone = [
            float(model(**tokenizer(f"how many?\n{c.text}", return_tensors="pt")).logits) for c in group.completions
        ]
    assert scored.totals.tolist() == pytest.approx(alone, abs=1e-5)
    squashed = shipped("reward_model.py:RewardModel", model=str(tmp_path), squash=True, max_length=64)
    [scored] = RewardSum.from_config([], Path(), [squashed]).score([group])
    assert scored.totals.tolist() == pytest.approx(torch.tensor(alone).sigmoid().tolist(), abs=1e-5)


def test_embedding_cosine_is_one_for_equal_texts_whatever_the_batch(tmp_path):
    from transformers import BertConfig, BertModel

    byte_tokenizer(tmp_path)
    BertModel(BertConfig(vocab_size=120, max_position_embeddings=64, **SMALL)).save_pretrained(tmp_path)
    f = shipped("similarity.py:EmbeddingCosine", model=str(tmp_path), batch_size=2)
    texts, truths = [tag("a red cube"), tag("blue"), tag("x")], ["a red cube", "a red cube", None]
    scores = f(completions=texts, answer=truths)
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    assert scores[1] < 0.999
    assert scores[2] is None
    alone = f(completions=texts[1:2], answer=truths[1:2])
    assert alone == pytest.approx(scores[1:2], abs=1e-5)


def test_clap_scores_captions_against_sounds(tmp_path):
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, ClapProcessor

    text = {**SMALL, "vocab_size": 120, "max_position_embeddings": 70, "projection_dim": 16, "pad_token_id": 0}
    audio = {
        "hidden_size": 64, "patch_embeds_hidden_size": 8, "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1],
        "num_mel_bins": 32, "spec_size": 64, "projection_dim": 16, "window_size": 2, "num_hidden_layers": 4,
    }  # fmt: skip
    model = ClapModel(ClapConfig(text_config=text, audio_config=audio, projection_dim=16)).eval()
    model.save_pretrained(tmp_path)
    extractor = ClapFeatureExtractor(feature_size=32, sampling_rate=48000, max_length_s=1, truncation="rand_trunc")
    ClapProcessor(extractor, byte_tokenizer(tmp_path / "t")).save_pretrained(tmp_path)
    f = shipped("clap.py:ClapScore", model=str(tmp_path), low=-1.0, high=1.0)
    wave = np.sin(np.arange(16000) / 20).astype(np.float32)
    sounds = [Decoded(kind="audio", data=wave * k, rate=16000) for k in (1.0, 0.1)]
    scores = f(
        completions=[tag("rain"), tag("rain"), tag("a dog"), "x"], audios=[sounds[:1], sounds[1:], sounds[:1], []]
    )
    assert scores[3] is None
    assert all(0.0 <= score <= 1.0 for score in scores[:3])
    assert scores[0] != scores[2]
