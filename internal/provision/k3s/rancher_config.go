// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// render returns the config.yaml for a host.
func (r rancher) render(in *Input, host *member, join string) ([]byte, error) {
	config := map[string]any{}
	maps.Copy(config, in.Spec.Config)
	labels, taints := slices.Clone(host.NodeLabels), slices.Clone(host.NodeTaints)
	if !host.server() {
		config["token"] = in.Stored.AgentToken
	} else {
		maps.Copy(config, in.Spec.ServerConfig)
		config["token"], config["agent-token"] = in.Stored.Token, in.Stored.AgentToken
		if host.is(provisionv1.RoleEtcd) {
			r.etcdConfig(in, config)
		}
		taints = append(taints, host.taints()...)
		for option, on := range map[string]bool{
			"disable-etcd": !host.is(provisionv1.RoleEtcd), "disable-apiserver": !host.is(provisionv1.RoleControlPlane),
			"disable-controller-manager": !host.is(provisionv1.RoleControlPlane), "disable-scheduler": !host.is(provisionv1.RoleControlPlane),
		} {
			if on {
				config[option] = true
			}
		}
	}
	config["node-name"] = host.Name
	if len(host.NodeIPs) > 0 {
		config["node-ip"] = in.nodeIP(host)
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
	for key, more := range map[string][]string{"node-label": labels, "node-taint": taints} {
		if all := append(texts(config[key]), more...); len(all) > 0 {
			config[key] = all
		}
	}
	return yaml.Marshal(config)
}

func (r rancher) etcdConfig(in *Input, config map[string]any) {
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
