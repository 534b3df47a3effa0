#!/usr/bin/env bash
# Times README's three commands as a newcomer copies them: a fresh clone in an empty folder, no compiler cache. Ends with their seconds.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mapfile -t commands < <(awk '/^## Three commands/ {section = 1} section && /^```/ {inside = !inside; if (!inside) exit; next} section && inside' "$root/README.md")
[ ${#commands[@]} -eq 3 ] || { echo "time_first_steps: README has ${#commands[@]} commands, not three" >&2; exit 1; }

export ADDRESS_OF_THIS_REPOSITORY=$root CCACHE_DISABLE=1
cd "$folder"
times=() total=0
for command in "${commands[@]}"; do
  echo "\$ $command"
  begin=$SECONDS
  eval "$command"
  times+=("$((SECONDS - begin))")
  total=$((total + SECONDS - begin))
done
grep -q '</html>' report.html || { echo "time_first_steps: report.html is not a whole page" >&2; exit 1; }
echo "first steps: ${times[*]} seconds, $total in all; report.html has $(stat -c %s report.html) bytes"
