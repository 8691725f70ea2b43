"""The contenders of `atlas bench federation`, each a program of its own.

Every one takes the folder that `federation_work.write_work` filled and the file to log rounds to.
"""
