# The program uv from PyPI's wheel, where the published image has it.
FROM scratch
COPY uv /uv
ENTRYPOINT ["/uv"]
