"""Protobuf begins and ends here: servicers validate, delegate and translate, and nothing else."""
