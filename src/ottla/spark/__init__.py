"""Topics as Spark tables: sources, sinks and system tables as Python data sources, without jars to install.

>>> import ottla.spark
>>> spark = ottla.spark.session()  # doctest: +SKIP
>>> spark.read.format("ottla-log").load("/var/lib/ottla").show()  # doctest: +SKIP
"""

from ottla.spark.expectations import Expectations
from ottla.spark.session import SparkSetupError, register, session
from ottla.spark.sink.foreach_batch import write_batch

__all__ = ["Expectations", "SparkSetupError", "register", "session", "write_batch"]
