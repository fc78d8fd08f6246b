# Installs the Debian package $1. Run by root. ($2 is for tests: where policy-rc.d is.)
#
# A package that brings a server starts it as a service of the machine when it is installed. Tests start their
# own, on ports of their own, so services are forbidden while this runs: 101 is policy-rc.d's "no".
set -e
export DEBIAN_FRONTEND=noninteractive
policy=${2:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
# Lists of other sources may be out of order; whether ours is is seen below.
apt-get update -q || :
apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"
