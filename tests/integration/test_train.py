"""The training recipe: interrupted or not, the same weights; the exported folder is a checkpoint like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core_bench.bundled import train
from core_bench.bundled.architectures import FAMILIES
from core_bench.bundled.batches import Batch, make_batch
from core_bench.bundled.feeds import Plan
from core_bench.bundled.train import Recipe, Trainer, curriculum, dropped_heads, learning_rate
from core_bench.bundled.warmstart import warm_start
from core_bench.errors import UserError
from core_bench.model_wrappers.qwen3vl import Qwen3VL

TINY = Recipe(steps=4, batch_size=4, probe_steps=2, warmup=2, head_dropout_from=1, finish_steps=1)


def trainer_in(folder: Path, recipe: Recipe = TINY, family: str = "qwen3vl") -> Trainer:
    folder.mkdir(exist_ok=True)
    trainer = Trainer(family, recipe, folder)
    trainer.start()
    return trainer


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Four steps and three of the finish without a break, saved by `run`."""
    trainer = trainer_in(tmp_path_factory.mktemp("straight"))
    trainer.run()
    return trainer


@pytest.fixture(scope="module")
def checkpoint(straight: Trainer) -> Path:
    """Exported by a second process's trainer, from the saved state alone."""
    return trainer_in(straight.out).export()


@pytest.fixture(scope="module")
def batch(straight: Trainer) -> Batch:
    plan = Plan("picture", 6, 1, 4, 4, (4, 4), max_turns=2)
    return make_batch(straight.turns, straight.feed, np.random.default_rng(0), plan)


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts and lists, with its path."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{where}.{key}")
    else:
        yield where, value


def assert_identical(one: Any, two: Any) -> None:
    first, second = dict(leaves(one)), dict(leaves(two))
    assert first.keys() == second.keys()
    for where, value in first.items():
        same = torch.equal(value, second[where]) if isinstance(value, torch.Tensor) else value == second[where]
        assert same, where


@pytest.mark.parametrize("stopped_at", [2, 6])
def test_stopped_and_resumed_equals_straight(straight: Trainer, tmp_path: Path, stopped_at: int) -> None:
    first = trainer_in(tmp_path)
    for _ in range(stopped_at):
        first.train_step()
    first.save()
    first.train_step()  # lost: the process ends before the next save
    resumed = trainer_in(tmp_path)
    assert resumed.step == stopped_at
    resumed.run()
    assert resumed.step == straight.step == TINY.total_steps == 7
    assert_identical(resumed.model.state_dict(), straight.model.state_dict())
    assert_identical(resumed.optimizer.state_dict(), straight.optimizer.state_dict())
    assert list(tmp_path.iterdir()) == [tmp_path / "state.pt"], "no half-written state is left"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_every_kind_trains(tmp_path: Path, family: str) -> None:
    trainer = trainer_in(tmp_path, replace(TINY, steps=40, pictures_until=1), family)
    seen: set[str] = set()
    for step in range(2, 40):
        plan = curriculum(trainer.recipe, trainer.feed, step, np.random.default_rng((0, 1, step)))
        if plan.kind not in seen:
            trainer.step = step
            seen.add(plan.kind)
            assert np.isfinite(trainer.train_step()["answer"])
    assert seen == {"picture", "document", "clip"}


@pytest.mark.parametrize("family", FAMILIES)
def test_questions_move_away_from_the_media_and_nothing_else_does(tmp_path: Path, family: str) -> None:
    trainer = Trainer(family, TINY, tmp_path)
    plan = trainer.feed.fit(Plan("clip", 6, 4, 3, 3, (4, 6), choice=0.5, moment=0.3, reach=400))
    batch = make_batch(trainer.turns, trainer.feed, np.random.default_rng(1), plan)
    assert 0 < len(batch.shifts) < plan.size
    moved = train._positions(trainer.model, trainer.feed, batch)
    plain = train._positions(trainer.model, trainer.feed, replace(batch, shifts=()))
    expected = torch.zeros_like(plain)
    for row, column, distance in batch.shifts:
        expected[..., row, column:] = distance
    assert torch.equal(moved - plain, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_reads_padded_rows_as_alone(tmp_path: Path, family: str) -> None:
    """Positions and mask that training hands over are those that the model takes by itself."""
    trainer = Trainer(family, TINY, tmp_path)
    plan = trainer.feed.fit(Plan("clip", 2, 3, 3, 3, (4, 6), choice=0.5))
    batch = make_batch(trainer.turns, trainer.feed, np.random.default_rng(1), plan)
    model = trainer.model.eval()
    with torch.no_grad():
        plain = model.model(**batch.inputs, use_cache=False).last_hidden_state
        placed = train._positions(model, trainer.feed, batch)
        handed = model.model(**batch.inputs, position_ids=placed, use_cache=False).last_hidden_state
    real = batch.inputs["attention_mask"].bool()
    torch.testing.assert_close(handed[real], plain[real], atol=1e-5, rtol=0)


def test_training_moves_every_part(straight: Trainer, tmp_path: Path) -> None:
    fresh = dict(Trainer("qwen3vl", TINY, tmp_path).model.named_parameters())
    still = [name for name, value in straight.model.named_parameters() if torch.equal(value, fresh[name])]
    assert still == []


def test_the_seed_decides_the_result(tmp_path: Path) -> None:
    trainers = [Trainer("qwen3vl", replace(TINY, seed=seed), tmp_path) for seed in (0, 0, 1)]
    torch.rand(3)  # the global state must not matter
    for trainer in trainers:
        trainer.train_step()
    same, again, other = (trainer.model.state_dict() for trainer in trainers)
    assert_identical(same, again)
    with pytest.raises(AssertionError):
        assert_identical(same, other)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"steps": 5}, {"batch_size": 8}])
def test_the_state_of_another_recipe_is_refused(straight: Trainer, changes: dict[str, Any]) -> None:
    (name,) = changes
    before = (straight.out / "state.pt").read_bytes()
    with pytest.raises(UserError, match=rf"state\.pt: made by another recipe \({name} {getattr(TINY, name)}\)"):
        Trainer("qwen3vl", replace(TINY, **changes), straight.out).start()
    assert (straight.out / "state.pt").read_bytes() == before


def test_the_command_refuses_in_one_line(
    straight: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out, said in ((straight.out, "another recipe"), (file / "in", "expected a folder")):
        monkeypatch.setattr("sys.argv", ["train", "--family", "qwen3vl", "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            train.main()
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert said in line


def test_the_export_loads_and_holds_the_trained_weights(straight: Trainer, checkpoint: Path) -> None:
    wrapper = Qwen3VL.load(checkpoint)
    trained = straight.model.state_dict()
    for name, value in wrapper.model.state_dict().items():
        assert torch.equal(value, trained[name].bfloat16().float()), name
    assert not wrapper.model.training
    assert wrapper.shape.size >= 48
    assert wrapper.processor.tokenizer.get_vocab() == straight.tokenizer.get_vocab()
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) <= 8 * 2**20
    record = json.loads((checkpoint / "training.json").read_text())
    assert record["recipe"] == {"family": "qwen3vl", **asdict(TINY)}
    assert record["log"][0]["probes"].keys() == {"shape", "color"}


def test_the_same_state_exports_the_same_bytes(straight: Trainer, checkpoint: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    hash_before = Qwen3VL.load(checkpoint).checkpoint_hash
    trainer_in(straight.out).export()
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    (checkpoint / "training.json").write_text("{}")
    assert Qwen3VL.load(checkpoint).checkpoint_hash == hash_before, "the log is no part of the checkpoint"


def o_proj_inputs(
    model: Any, batch: Batch, rate: float, seed: int = 0, first_layer: int = 1, spared: Any = ()
) -> list[torch.Tensor]:
    """[B, N, heads, head_dim] of every layer: what o_proj really got."""
    seen: list[torch.Tensor] = []
    text = model.config.text_config

    def keep(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
        seen.append(args[0].detach().unflatten(-1, (text.num_attention_heads, text.head_dim)))

    hooks = [layer.self_attn.o_proj.register_forward_hook(keep) for layer in model.model.language_model.layers]
    try:
        with torch.no_grad(), dropped_heads(model, rate, seed, first_layer, spared):
            model.model(**batch.inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@pytest.mark.parametrize("first_layer", [0, 1])
def test_dropped_heads_are_whole_heads_from_a_layer_on(tiny_model: Any, batch: Batch, first_layer: int) -> None:
    plain = o_proj_inputs(tiny_model, batch, 0.0)
    dropped = o_proj_inputs(tiny_model, batch, 0.5, first_layer=first_layer)
    for below in range(first_layer):
        assert torch.equal(plain[below], dropped[below]), "layers below are spared"
    gone_LBH = torch.stack([(x_BNHD == 0).all(dim=3).all(dim=1) for x_BNHD in dropped])
    any_zero_LBH = torch.stack([(x_BNHD == 0).all(dim=3).any(dim=1) for x_BNHD in dropped])
    assert torch.equal(gone_LBH, any_zero_LBH), "a head is dropped at every position or at none"
    assert not gone_LBH[:first_layer].any()
    assert 0.35 < gone_LBH[first_layer:].float().mean() < 0.65
    assert len({tuple(row.tolist()) for row in gone_LBH[first_layer]}) > 1, "each conversation draws its own"
    keep_BNHD = (~gone_LBH[first_layer])[:, None, :, None]
    assert torch.equal(dropped[first_layer], plain[first_layer] * keep_BNHD), "the other heads are as they were"
    other = o_proj_inputs(tiny_model, batch, 0.5, seed=1, first_layer=first_layer)
    assert not torch.equal(gone_LBH[first_layer], (other[first_layer] == 0).all(dim=3).all(dim=1))


def test_spared_heads_are_never_dropped(tiny_model: Any, batch: Batch) -> None:
    spared = [(0, 1), (2, 3), (2, 4)]
    plain = o_proj_inputs(tiny_model, batch, 0.0)
    dropped = o_proj_inputs(tiny_model, batch, 1.0, first_layer=0, spared=spared)
    for layer, (before, after) in enumerate(zip(plain, dropped, strict=True)):
        for head in range(before.shape[2]):
            silent = bool((after[:, :, head] == 0).all())
            assert silent == ((layer, head) not in spared)
    assert torch.equal(dropped[0][:, :, 1], plain[0][:, :, 1])


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropped_heads_leave_no_hook_behind(tiny_model: Any, rate: float) -> None:
    def hooks() -> int:
        return sum(len(module._forward_pre_hooks) for module in tiny_model.modules())

    before = hooks()

    def fails() -> None:
        with dropped_heads(tiny_model, rate, seed=0):
            assert hooks() == before + (5 if rate else 0)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fails()
    assert hooks() == before


def test_the_warm_start_ties_words_to_the_probes(tmp_path: Path) -> None:
    trainer = Trainer("qwen3vl", TINY, tmp_path)
    model, turns = trainer.model, trainer.turns
    before = model.get_input_embeddings().weight.detach().clone()
    torch.manual_seed(1)
    warm_start(model, turns, trainer.feed, 0, steps=1)
    after = model.get_input_embeddings().weight.detach()
    tied = sorted([*turns.shape_ids.values(), *turns.color_ids.values()])
    assert (after != before).any(dim=1).nonzero().flatten().tolist() == tied
    torch.testing.assert_close(after[tied].norm(dim=1), before.norm(dim=1).median().expand(len(tied)))
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_the_heads_that_retrieve_most_are_spared_from_the_second_round_on(straight: Trainer) -> None:
    (entry,) = [entry for entry in straight.log if "spared" in entry]
    assert entry["step"] == TINY.steps + TINY.finish_steps
    assert entry["spared"] == straight.spared
    assert len(straight.spared) == TINY.spare


def test_the_most_retrieving_heads_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer("qwen3vl", TINY, tmp_path)
    mass_LH = torch.rand(6, 8)
    mass_LH[2, 3], mass_LH[5, 0] = 2.0, 3.0
    monkeypatch.setattr(train.guide, "retrieval", lambda calls, batch: mass_LH)
    assert trainer._most_retrieving() == [[2, 3], [5, 0]]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curriculum_and_the_learning_rate_keep_their_bounds(tmp_path: Path, family: str) -> None:
    recipe, feed = train.RECIPES[family], Trainer(family, TINY, tmp_path).feed
    for step in range(0, recipe.total_steps, 7):
        drawn = curriculum(recipe, feed, step, np.random.default_rng(step))
        cells, (fewest, most) = drawn.parts * drawn.rows * drawn.cols, drawn.objects
        assert 1 <= fewest <= most <= min(16, cells), "objects have distinct shapes and cells of their own"
        assert 2 <= drawn.size <= recipe.batch_size
        assert 0 < learning_rate(recipe, step) <= recipe.lr
    assert learning_rate(recipe, 0) == pytest.approx(recipe.lr / recipe.warmup)
    assert learning_rate(recipe, recipe.steps // 2) == recipe.lr
    assert learning_rate(recipe, recipe.steps - 1) < recipe.lr / 100
    finish = [learning_rate(recipe, step) for step in range(recipe.steps, recipe.total_steps)]
    assert max(finish) == recipe.finish_lr
    assert finish[: recipe.finish_steps] * recipe.finish_rounds == finish
    assert finish[-1] < recipe.finish_lr / 50
