// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

func (r rancher) folder() string { return "/etc/rancher/" + r.name }

func (r rancher) dataDir(in *roster.Input) string {
	return cmp.Or(in.Spec.DataDir, "/var/lib/rancher/"+r.name)
}

func (r rancher) Files(in *roster.Input, host *roster.Member, join string) ([]protocol.HostFile, error) {
	config, err := r.render(in, host, join)
	if err != nil {
		return nil, fmt.Errorf("write config.yaml: %w", err)
	}
	files := []protocol.HostFile{{Path: r.folder() + "/config.yaml", Content: config, Mode: "0600"}}
	if len(in.Registries) > 0 {
		files = append(files, protocol.HostFile{Path: r.folder() + "/registries.yaml", Content: in.Registries, Mode: "0600"})
	}
	if len(in.S3.CA) > 0 && host.Is(provisionv1.RoleEtcd) {
		files = append(files, protocol.HostFile{Path: r.s3CA(), Content: in.S3.CA, Mode: "0600"})
	}
	return files, nil
}

func (r rancher) s3CA() string { return r.folder() + "/etcd-s3-ca.crt" }

func (r rancher) Manifest(in *roster.Input) string {
	return r.dataDir(in) + "/server/manifests/drover-agent.yaml"
}

func (r rancher) JoinURL(address string) string {
	if strings.Contains(address, ":") { // IPv6
		address = "[" + address + "]"
	}
	return fmt.Sprintf("https://%s:%d", address, r.joinPort)
}

// render returns the config.yaml for a host.
func (r rancher) render(in *roster.Input, host *roster.Member, join string) ([]byte, error) {
	config := map[string]any{}
	maps.Copy(config, in.Spec.Config)
	nodeLabels, nodeTaints := slices.Clone(host.NodeLabels), slices.Clone(host.NodeTaints)
	if !host.IsServer() {
		config["token"] = in.Stored.AgentToken
	} else {
		maps.Copy(config, in.Spec.ServerConfig)
		config["token"], config["agent-token"] = in.Stored.Token, in.Stored.AgentToken
		if host.Is(provisionv1.RoleEtcd) {
			r.etcdConfig(in, config)
		}
		nodeTaints = append(nodeTaints, taints(host)...)
		for option, on := range map[string]bool{
			"disable-etcd": !host.Is(provisionv1.RoleEtcd), "disable-apiserver": !host.Is(provisionv1.RoleControlPlane),
			"disable-controller-manager": !host.Is(provisionv1.RoleControlPlane), "disable-scheduler": !host.Is(provisionv1.RoleControlPlane),
		} {
			if on {
				config[option] = true
			}
		}
	}
	config["node-name"] = host.Name
	if len(host.NodeIPs) > 0 {
		config["node-ip"] = nodeIP(in, host)
	}
	if in.Spec.DataDir != "" {
		config["data-dir"] = in.Spec.DataDir
	}
	switch {
	case join != "":
		config["server"] = join
	case r.begins != "":
		config[r.begins] = true
	}
	for key, more := range map[string][]string{"node-label": nodeLabels, "node-taint": nodeTaints} {
		if all := append(texts(config[key]), more...); len(all) > 0 {
			config[key] = all
		}
	}
	return yaml.Marshal(config)
}

func (r rancher) etcdConfig(in *roster.Input, config map[string]any) {
	set := func(option string, value string) {
		if value != "" {
			config[option] = value
		}
	}
	e := in.Spec.Etcd
	set("etcd-snapshot-schedule-cron", strings.TrimSpace(e.Schedule)) // the distributions do not accept "@daily "
	if e.Retention > 0 {
		config["etcd-snapshot-retention"] = e.Retention
	}
	if e.S3 == nil {
		return
	}
	config["etcd-s3"] = true
	if _, own := config["etcd-s3-retention"]; e.Retention > 0 && !own && hasS3Retention(in.Spec.Version) {
		config["etcd-s3-retention"] = e.Retention
	}
	set("etcd-s3-endpoint", e.S3.Endpoint)
	set("etcd-s3-bucket", e.S3.Bucket)
	set("etcd-s3-region", e.S3.Region)
	set("etcd-s3-bucket-lookup-type", strings.ToLower(string(e.S3.BucketLookup)))
	set("etcd-s3-folder", e.S3.Folder)
	set("etcd-s3-access-key", in.S3.AccessKey)
	set("etcd-s3-secret-key", in.S3.SecretKey)
	if len(in.S3.CA) > 0 {
		config["etcd-s3-endpoint-ca"] = r.s3CA()
	}
}

// texts returns the values of an option that is a string or a list.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, text := range v {
			all = append(all, fmt.Sprint(text))
		}
	}
	return all
}

// hasS3Retention reports whether a version has a separate retention for the snapshots in a bucket. Older versions do
// not support the option and fail to start if it is set.
func hasS3Retention(of string) bool {
	v, err := version.ParseGeneric(of)
	if err != nil {
		return false
	}
	first, is := map[uint]uint{31: 12, 32: 8, 33: 4}[v.Minor()]
	return v.Major() > 1 || v.Minor() >= 34 || is && v.Patch() >= first
}

// nodeIP returns the addresses of a host's node. A dual-stack cluster accepts only nodes with an address from each IP
// family.
func nodeIP(in *roster.Input, host *roster.Member) any {
	if !dualStack(in) || len(host.NodeIPs) == 1 {
		return host.NodeIPs[0]
	}
	return host.NodeIPs
}

// dualStack reports whether the cluster's pods have addresses from both IP families.
func dualStack(in *roster.Input) bool {
	families := map[bool]bool{}
	for _, config := range []map[string]any{in.Spec.Config, in.Spec.ServerConfig} {
		all := slices.Concat(texts(config["cluster-cidr"]), texts(config["cluster-cidr+"]))
		for cidr := range strings.SplitSeq(strings.Join(all, ","), ",") {
			if strings.Contains(cidr, "/") {
				families[strings.Contains(cidr, ":")] = true
			}
		}
	}
	return len(families) == 2
}

// taints returns the taints for a server that is not a worker. Rancher uses the same taints.
func taints(m *roster.Member) (taints []string) {
	if m.Is(provisionv1.RoleWorker) {
		return nil
	}
	if m.Is(provisionv1.RoleEtcd) {
		taints = append(taints, "node-role.kubernetes.io/etcd:NoExecute")
	}
	if m.Is(provisionv1.RoleControlPlane) {
		taints = append(taints, "node-role.kubernetes.io/control-plane:NoSchedule")
	}
	return taints
}
