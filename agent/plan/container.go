// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Names of the volumes in each pod of a plan.
const (
	volumeHost = "host-root"
	volumeInfo = "pod-info"
)

func newContainer(w work, spec v1.PlanContainer) corev1.Container {
	name, security := "upgrade", spec.SecurityContext
	if w.prepare() {
		name = "prepare"
	} else if security == nil {
		security = &corev1.SecurityContext{
			Privileged: new(true), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CAP_SYS_BOOT"}},
		}
	}
	c := corev1.Container{
		Name: name, Image: protocol.WithRegistry(w.images, tagged(spec.Image, w.version)),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         spec.Command, Args: spec.Args, Env: environment(w, spec.Envs), EnvFrom: spec.EnvFrom,
		SecurityContext: security,
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeHost, MountPath: "/host"},
			{Name: volumeInfo, MountPath: "/run/system-upgrade/pod", ReadOnly: true},
		},
	}
	for _, s := range w.plan.Spec.Secrets {
		at := cmp.Or(s.Path, s.Name)
		if !path.IsAbs(at) {
			at = path.Join(secretsPath, at)
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: secretVolume(s.Name), MountPath: at, ReadOnly: true})
	}
	for _, v := range spec.Volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: v.Destination})
	}
	return c
}

// environment returns the environment variables that upgrade images use.
func environment(w work, more []corev1.EnvVar) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name,
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	env := append([]corev1.EnvVar{
		field("SYSTEM_UPGRADE_NODE_NAME", "spec.nodeName"),
		field("SYSTEM_UPGRADE_POD_NAME", "metadata.name"),
		field("SYSTEM_UPGRADE_POD_UID", "metadata.uid"),
	}, more...)
	return append(env,
		corev1.EnvVar{Name: "SYSTEM_UPGRADE_PLAN_NAME", Value: w.plan.Name},
		corev1.EnvVar{Name: "SYSTEM_UPGRADE_PLAN_LATEST_HASH", Value: w.job.Hash},
		corev1.EnvVar{Name: "SYSTEM_UPGRADE_PLAN_LATEST_VERSION", Value: w.version},
	)
}

// tagged returns the image with the version as its tag, unless the image already has a tag or digest. A colon before
// the last slash separates a registry from its port, not an image from its tag.
func tagged(image, version string) string {
	if strings.ContainsAny(image[strings.LastIndex(image, "/")+1:], ":@") {
		return image
	}
	return image + ":" + version
}

func podVolumes(secrets []v1.PlanSecret, host []v1.HostVolume) []corev1.Volume {
	info := []corev1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "annotations", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"}},
	}
	volumes := []corev1.Volume{
		{Name: volumeHost, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: new(corev1.HostPathDirectory)},
		}},
		{Name: volumeInfo, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: info}}},
	}
	for _, s := range secrets {
		volumes = append(volumes, corev1.Volume{Name: secretVolume(s.Name), VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: s.Name, Optional: new(s.IgnoreUpdates), DefaultMode: s.DefaultMode},
		}})
	}
	for _, v := range host {
		volumes = append(volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: v.Source},
		}})
	}
	return volumes
}

// secretVolume returns the volume name for a Secret. Names that differ only in a dot get different volumes.
func secretVolume(secret string) string { return safeName("secret", secret) }
