# penstock in a container:  docker build -t penstock .  &&  docker run -v "$PWD:/data" penstock check recipe.yaml
FROM python:3.11-slim
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[hf,s3]" && rm -rf /src
ENV PENSTOCK_CACHE=/cache
VOLUME /cache
WORKDIR /data
ENTRYPOINT ["penstock"]
