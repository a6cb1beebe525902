// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/cloudconfig"
	"github.com/drover-dev/drover/internal/provision/k3s"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
)

// Timeouts for the steps of a bootstrap, in seconds. They are long because kubeadm pulls images.
const (
	bootstrapTimeout = 3600
	installTimeout   = 600
	removeTimeout    = 1800
)

// folder is the directory for a machine's script and manifest. It is next to the agent's directory.
const folder = "/var/lib/drover/machine/"

// sentinel is the file that marks a successful bootstrap, as defined in Cluster API's contract for bootstrap providers.
const sentinel = "/run/cluster-api/bootstrap-success.complete"

// begins is the beginning of a bootstrap script. It removes the sentinel file from any earlier bootstrap.
const begins = "rm -rf " + sentinel + "\nmkdir -p /run/cluster-api\n"

// bootstrap runs a script in the same way as cloud-init does: it continues after a command fails. The bootstrap fails
// if the sentinel file is missing afterward.
const bootstrap = `/bin/sh "$0"; test -e ` + sentinel + ` || { echo "the bootstrap did not write ` + sentinel + `" >&2; exit 1; }`

// installScript returns a script that applies the agent's manifest. The script runs on the machine that has just become
// a control plane node, so no access from outside is needed. It retries until the instruction times out. Each
// distribution stores the administrator's kubeconfig in a different place, and some install kubectl in their own
// directory.
func installScript() string {
	names, files, programs := []string{"kubeadm"}, []string{kubeadm.Kubeconfig}, []string{"$PATH", "/usr/local/bin"}
	for _, d := range k3s.Machines() {
		names, files, programs = append(names, d.Distribution), append(files, d.Kubeconfig), append(programs, d.Programs...)
	}
	return `PATH=` + strings.Join(programs, ":") + `
for config in ` + strings.Join(files, " ") + `; do
	test -e "$config" || continue
	until kubectl --kubeconfig "$config" apply --server-side --force-conflicts -f "$0"; do sleep 5; done
	exit
done
echo "no kubeconfig of ` + strings.Join(names, ", ") + ` is on this machine, so the agent cannot be installed:" \
	"the bootstrap must make a control plane by one of these" >&2
exit 1`
}

// clean returns the instructions that clean a Host before the Host is released. They start by removing the distribution
// that the bootstrap installed.
func clean(uid string) []protocol.HostInstruction {
	var all []protocol.HostInstruction
	removals := k3s.Removals()
	for _, name := range slices.Sorted(maps.Keys(removals)) {
		all = append(all, protocol.HostInstruction{ID: name + "-" + uid, Command: removals[name], TimeoutSeconds: removeTimeout})
	}
	reset := kubeadm.Remove()
	reset.ID = "reset-" + uid
	return append(all, reset)
}

// ProviderID returns the provider ID for a Host's node.
func ProviderID(host *v1.Host) string {
	return infrav1.ProviderIDPrefix + host.Namespace + "/" + host.Name
}

// bootstrapInput holds everything that a machine's first instructions depend on.
type bootstrapInput struct {
	// uid is the UID of the DroverMachine. Each instruction runs only once per UID.
	uid  string
	host *v1.Host
	// data is the bootstrap data from Cluster API's bootstrap provider.
	data []byte
	// version is the Kubernetes version that Cluster API requests. The bootstrap commands use it.
	version string
	// manifest is the agent's manifest. It is nil if the cluster already has an agent, or if the machine is not a
	// control plane node.
	manifest []byte
}

// makeInstructions returns the instructions that turn a Host into a node. It has no side effects. Its errors do not
// contain any of the bootstrap data.
func makeInstructions(in bootstrapInput) (*protocol.HostInstructions, error) {
	id := strings.TrimPrefix(ProviderID(in.host), infrav1.ProviderIDPrefix)
	hostname := ""
	if in.host.Status.Machine != nil {
		hostname = in.host.Status.Machine.Hostname
	}
	config, err := cloudconfig.Parse(in.data, cloudconfig.Instance{ID: id, Hostname: strings.ToLower(cmp.Or(hostname, in.host.Name))})
	if err != nil {
		return nil, err
	}
	if !named(config, ProviderID(in.host)) {
		return nil, fmt.Errorf("the bootstrap data gives the kubelet no provider ID, with which Cluster API finds the node: set the kubelet's argument provider-id to  %s{{ ds.meta_data.instance_id }}", infrav1.ProviderIDPrefix)
	}
	made := &protocol.HostInstructions{}
	for _, f := range config.Files {
		made.Files = append(made.Files, protocol.HostFile{Path: f.Path, Content: f.Content, Mode: f.Mode, UID: f.UID, GID: f.GID})
	}
	script := folder + in.uid + "/bootstrap.sh"
	text := "#!/bin/sh\n" + begins + exported(in.version) + strings.Join(config.Commands, "\n") + "\n"
	made.Files = append(made.Files, protocol.HostFile{Path: script, Content: []byte(text), Mode: "0700"})
	made.Instructions = []protocol.HostInstruction{{ID: "bootstrap-" + in.uid, Command: []string{"/bin/sh", "-c", bootstrap, script}, TimeoutSeconds: bootstrapTimeout}}
	if in.manifest != nil {
		manifest := folder + in.uid + "/agent.yaml"
		made.Files = append(made.Files, protocol.HostFile{Path: manifest, Content: in.manifest, Mode: "0600"})
		made.Instructions = append(made.Instructions, protocol.HostInstruction{ID: "agent-" + in.uid, Command: []string{"/bin/sh", "-c", installScript(), manifest}, TimeoutSeconds: installTimeout})
	}
	made.Clean = clean(in.uid)
	return made, refused(made)
}

// exported returns the line of the script that passes the Kubernetes version to commands. Because of this line, a
// command that installs Kubernetes need not change when the version changes. This is important because changes to the
// KubeadmConfig are not applied in place.
func exported(of string) string {
	if parsed, err := version.ParseSemantic(of); err != nil || "v"+parsed.String() != of {
		return ""
	}
	return "export " + kubeadm.VersionVariable + "=" + of + "\n"
}

// refused returns an error if every host would refuse the instructions, for example because a file has no path.
func refused(made *protocol.HostInstructions) error {
	raw, err := json.Marshal(made)
	if err != nil {
		return err
	}
	if _, err := protocol.ParseHostInstructions(raw); err != nil {
		return fmt.Errorf("the bootstrap data cannot be turned into instructions of a Host: %w", err)
	}
	return nil
}

// named reports whether the provider ID occurs as a whole word in a file or command.
func named(config *cloudconfig.Config, id string) bool {
	texts := []string{strings.Join(config.Commands, "\n")}
	for _, f := range config.Files {
		texts = append(texts, string(f.Content))
	}
	for _, text := range texts {
		for rest := text; ; {
			_, after, found := strings.Cut(rest, id)
			if !found {
				break
			}
			if after == "" || !strings.ContainsAny(after[:1], "abcdefghijklmnopqrstuvwxyz0123456789.-") {
				return true
			}
			rest = after
		}
	}
	return false
}
