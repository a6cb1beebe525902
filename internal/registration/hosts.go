// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// hostScript downloads the agent's binary and runs it. At the end, the script removes the directory given with
// --temporary. It reads only --temporary, --server and --ca, and passes the other options to the binary. It contains no
// data from clients.
const hostScript = `#!/bin/sh
# Joins this machine to a Drover hub. The command in the Secret "<host>-host-join" runs it, with the join token on standard input.
set -eu
server= ca= temporary=
while [ $# -gt 0 ]; do
	case $1 in
	--temporary) temporary=$2; shift 2 ;;
	--server) server=$2; shift 2 ;;
	--ca) ca=$2; shift 2 ;;
	*) break ;;
	esac
done
new=
trap 'rm -f "$new"; [ -z "$temporary" ] || rm -rf "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
[ "$(id -u)" = 0 ] || [ -n "${DROVER_HOST_BIN_DIR:-}" ] || { echo "run this as root" >&2; exit 1; }
case $(uname -m) in
x86_64) platform=linux-amd64 ;;
aarch64 | arm64) platform=linux-arm64 ;;
*) echo "there is no agent for $(uname -m)" >&2; exit 1 ;;
esac
dir=${DROVER_HOST_BIN_DIR:-/usr/local/bin}
new=$dir/.drover-host-agent.new
if [ -n "$ca" ]; then
	curl -fsS --retry 5 --cacert "$ca" --capath /dev/null -o "$new" "$server/v1/hosts/agent/$platform"
else
	curl -fsS --retry 5 -o "$new" "$server/v1/hosts/agent/$platform"
fi
chmod 0755 "$new"
mv "$new" "$dir/drover-host-agent"
"$dir/drover-host-agent" join --server "$server" "$@"
`

// HostCommand returns the command that an administrator runs on a machine. The administrator may add --role, --label
// and --taint. If the CA is pinned, the command contains it, so that every download is verified (CVE-2025-67601).
func HostCommand(server, token string, trust v1.Trust, caBundle string) (string, error) {
	script := server + protocol.PathHostScript
	if trust == v1.TrustSystem || caBundle == "" {
		return fmt.Sprintf(`d=$(mktemp -d) && { curl -fsS -o "$d/join.sh" %s || { rm -rf "$d"; false; }; } && `+
			`printf '%%s\n' %s | sh "$d/join.sh" --temporary "$d" --server %s --trust System`, script, token, server), nil
	}
	sums, err := protocol.CertificateChecksums([]byte(caBundle))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`d=$(mktemp -d) && { printf %%s %s | base64 -d >"$d/ca.crt" && curl -fsS --cacert "$d/ca.crt" --capath /dev/null -o "$d/join.sh" %s || `+
		`{ rm -rf "$d"; false; }; } && printf '%%s\n' %s | sh "$d/join.sh" --temporary "$d" --server %s --ca "$d/ca.crt" --ca-checksum %s`,
		base64.StdEncoding.EncodeToString([]byte(caBundle)), script, token, server, strings.Join(sums, ",")), nil
}

func serveHostScript(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/x-shellscript")
	_, _ = io.WriteString(w, hostScript)
}
