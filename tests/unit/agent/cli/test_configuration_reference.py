from pathlib import Path

from lakewarden.agent.cli.configuration_reference import render

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"


def test_the_configuration_reference_is_what_the_settings_say() -> None:
    """Run `python -m lakewarden.agent.cli.configuration_reference > docs/configuration.md` after changing a setting."""
    assert PAGE.read_text() == render()
