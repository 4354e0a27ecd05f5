"""`lakewarden web`: the page that shows operators what happens, from Kafka alone (docs/decisions/0039-the-page.md)."""
