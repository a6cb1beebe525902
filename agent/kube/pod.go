// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"

	"k8s.io/client-go/rest"
)

// PodUID returns the UID of the pod in which this process runs. The UID is in the ServiceAccount token, because the
// kubelet binds this token to the pod. The result is empty if there is no such token. It is also empty for a client
// with a kubeconfig, because several processes can share a kubeconfig.
func PodUID(cfg *rest.Config, kubeconfig string) string {
	if kubeconfig != "" || cfg.BearerTokenFile == "" {
		return ""
	}
	token, err := os.ReadFile(cfg.BearerTokenFile)
	if err != nil {
		return ""
	}
	return podOf(string(token))
}

// podOf reads the pod's UID from a token. It does not check the signature, because only this pod's kubelet writes the
// token's file.
func podOf(token string) string {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Kubernetes.Pod.UID
}
