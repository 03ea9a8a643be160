"""A program of its own, to be killed: a stream from one topic to another, until all that is there is done."""

from __future__ import annotations

import sys


def main(url: str, token: str, source: str, sink: str, checkpoint: str) -> None:
    from landbridge.pipeline import session

    spark = session("local[2]", **{"spark.driver.memory": "512m", "spark.log.level": "ERROR"})
    access = {"url": url, "token": token}
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50", **access}
    frame = spark.readStream.format("landbridge").options(**options).load().select("value")
    to = {"topic": sink, "checkpointLocation": checkpoint, **access}
    query = frame.writeStream.format("landbridge").options(**to).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
