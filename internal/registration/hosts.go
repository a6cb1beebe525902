// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// hostAgent is the agent's program for hosts, beside the manager's own. For other platforms than the manager's it has "-<platform>" at its end.
	hostAgent = "drover-host-agent"
	// maxDownloads bounds those of the agent's program at a time, and downloadTime each.
	maxDownloads = 16
	downloadTime = 10 * time.Minute
)

// hostScript downloads the agent's program and lets it do the rest. All but --server and --ca is the program's. Nothing that a client sends is in it.
const hostScript = `#!/bin/sh
# Joins this machine to a Drover hub. The command in the Secret "<host>-host-join" runs it, with the join token on standard input.
set -eu
server= ca=
while [ $# -gt 0 ]; do
	case $1 in
	--server) server=$2; shift 2 ;;
	--ca) ca=$2; shift 2 ;;
	*) break ;;
	esac
done
[ "$(id -u)" = 0 ] || [ -n "${DROVER_HOST_BIN_DIR:-}" ] || { echo "run this as root" >&2; exit 1; }
case $(uname -m) in
x86_64) platform=linux-amd64 ;;
aarch64 | arm64) platform=linux-arm64 ;;
*) echo "there is no agent for $(uname -m)" >&2; exit 1 ;;
esac
dir=${DROVER_HOST_BIN_DIR:-/usr/local/bin}
new=$dir/.drover-host-agent.new
trap 'rm -f "$new"' EXIT
if [ -n "$ca" ]; then
	curl -fsS --cacert "$ca" --capath /dev/null -o "$new" "$server/v1/hosts/agent/$platform"
else
	curl -fsS -o "$new" "$server/v1/hosts/agent/$platform"
fi
chmod 0755 "$new"
mv "$new" "$dir/drover-host-agent"
"$dir/drover-host-agent" join --server "$server" "$@"
`

// HostCommand returns the command that a person runs on a machine, to which they may add --role, --label and --taint. With a pinned CA it contains
// the CA, so that everything that is fetched is verified (CVE-2025-67601).
func HostCommand(server, token string, trust v1.Trust, caBundle string) (string, error) {
	script := server + protocol.PathHostScript
	if trust == v1.TrustSystem || caBundle == "" {
		return fmt.Sprintf(`d=$(mktemp -d) && curl -fsS -o "$d/join.sh" %s && printf '%%s\n' %s | sh "$d/join.sh" --server %s --trust System`, script, token, server), nil
	}
	sums, err := protocol.CertificateChecksums([]byte(caBundle))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`d=$(mktemp -d) && printf %%s %s | base64 -d >"$d/ca.crt" && curl -fsS --cacert "$d/ca.crt" --capath /dev/null -o "$d/join.sh" %s && `+
		`printf '%%s\n' %s | sh "$d/join.sh" --server %s --ca "$d/ca.crt" --ca-checksum %s`,
		base64.StdEncoding.EncodeToString([]byte(caBundle)), script, token, server, strings.Join(sums, ",")), nil
}

func serveHostScript(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/x-shellscript")
	_, _ = io.WriteString(w, hostScript)
}

var platformForm = regexp.MustCompile(`^linux-[a-z0-9]{1,16}$`)

// downloads counts those under way.
type downloads struct{ running atomic.Int32 }

// serveHostAgent serves the agent's program, so that a machine needs no other server than the hub.
func (d *downloads) serveHostAgent(w http.ResponseWriter, r *http.Request) {
	platform := r.PathValue("platform")
	if !platformForm.MatchString(platform) {
		http.Error(w, "name a platform like linux-amd64", http.StatusNotFound)
		return
	}
	defer d.running.Add(-1)
	if d.running.Add(1) > maxDownloads {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "the hub sends the agent to many machines at the moment; try again", http.StatusServiceUnavailable)
		return
	}
	file, err := openHostAgent(platform)
	if err != nil {
		http.Error(w, "this hub has no agent for "+platform, http.StatusNotFound)
		return
	}
	defer file.Close()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTime)) // a writer without deadlines is a test's
	w.Header().Set("Content-Type", "application/octet-stream")
	if info, err := file.Stat(); err == nil {
		w.Header().Set("Content-Length", fmt.Sprint(info.Size()))
	}
	_, _ = io.Copy(w, file)
}

func openHostAgent(platform string) (*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	name := filepath.Join(filepath.Dir(self), hostAgent)
	if platform != "linux-"+runtime.GOARCH {
		name += "-" + platform
	}
	return os.Open(name)
}
