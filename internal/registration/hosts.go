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
	"sync"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/limit"
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

// hostAgent is the file name of the agent's binary for hosts. This binary is in the same directory as the manager's
// binary. For platforms other than the manager's own platform, "-<platform>" is appended.
const hostAgent = "drover-host-agent"

// Limits on downloads of the agent's binary. Any client can request a download. The hub closes the connection of a
// client that reads no data for stallTime, or does not finish within downloadTime. Clients with the same address, such
// as clients behind a proxy, share a limit on concurrent downloads and wait in a queue.
const (
	downloadsOfSource = 16
	downloadsAtOnce   = 128
	downloadQueue     = 512
	queueOfSource     = 128
	downloadWait      = 20 * time.Second
	stallTime         = 20 * time.Second
	downloadTime      = 10 * time.Minute
	downloadChunk     = 64 << 10
)

var platformForm = regexp.MustCompile(`^linux-[a-z0-9]{1,16}$`)

// downloads serves the agent's binary. The zero value is ready to use.
type downloads struct {
	made  sync.Once
	gate  *limit.Gate
	stall time.Duration                  // stallTime, except in tests
	open  func(string) (*os.File, error) // openHostAgent, except in tests
}

func (d *downloads) make() {
	if d.gate == nil {
		d.gate = limit.NewGate(limit.Bounds{User: downloadsOfSource, All: downloadsAtOnce, Queue: downloadQueue,
			QueueUser: queueOfSource, Wait: downloadWait}, limit.Observer{})
	}
	if d.stall == 0 {
		d.stall = stallTime
	}
	if d.open == nil {
		d.open = openHostAgent
	}
}

// serveHostAgent serves the agent's binary. As a result, machines need access only to the hub.
func (d *downloads) serveHostAgent(w http.ResponseWriter, r *http.Request) {
	d.made.Do(d.make)
	platform := r.PathValue("platform")
	if !platformForm.MatchString(platform) {
		http.Error(w, "name a platform, such as linux-amd64", http.StatusNotFound)
		return
	}
	seat, err := d.gate.Enter(r.Context(), limit.Requester{User: limit.Source(r.RemoteAddr)})
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "the hub is sending the agent to many machines at the moment; try again", http.StatusServiceUnavailable)
		return
	}
	defer seat.Release()
	file, err := d.open(platform)
	if err != nil {
		http.Error(w, "this hub has no agent program for "+platform, http.StatusNotFound)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if info, err := file.Stat(); err == nil {
		w.Header().Set("Content-Length", fmt.Sprint(info.Size()))
	}
	d.send(w, file)
}

// send copies a binary to a client for as long as the client keeps reading.
func (d *downloads) send(w http.ResponseWriter, program io.Reader) {
	control, last := http.NewResponseController(w), time.Now().Add(downloadTime)
	for {
		due := time.Now().Add(d.stall)
		if last.Before(due) {
			due = last
		}
		_ = control.SetWriteDeadline(due) // only writers in tests do not support deadlines
		if n, err := io.CopyN(w, program, downloadChunk); n < downloadChunk || err != nil {
			return
		}
	}
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
