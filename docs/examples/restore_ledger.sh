#!/bin/sh
# Publishes the last committed batch of each writer from a backup of the ledger:
#
#   lakewarden ledger show --output json > ledger.json         # the backup
#   sh restore_ledger.sh ledger.json 'Kafka was lost'          # the restore; the second argument is the reason that is recorded
#
# Settings come from the environment (LAKEWARDEN_…). An agent must run. It ends at the first correction that fails; run it again.
set -eu
jq -r '.[] | select(.batch_id != null) | [.table, .writer, .batch_id] | @tsv' "$1" |
  while IFS="$(printf '\t')" read -r table writer batch; do
    lakewarden ledger correct --table "$table" --writer "$writer" --batch-id "$batch" --reason "$2" < /dev/null
  done
