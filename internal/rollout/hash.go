// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Version returns a version in the form of image tags and labels: "+", which neither can have, becomes "-".
func Version(version string) string { return strings.ReplaceAll(version, "+", "-") }

// SecretDigest stands for the content of a Secret in Hash.
func SecretDigest(secret *corev1.Secret) (string, error) {
	return digest(secret.Type, secret.Data)
}

// Hash returns the value of the label of nodes that have all of a plan, 56 characters. It covers the work on a node,
// the version (before or after the function Version), and the digests of Secrets by name, without those that have
// ignoreUpdates and those that the plan does not mount.
func Hash(work *v1.NodeWork, version string, secrets map[string]string) (string, error) {
	matter := map[string]string{}
	for _, s := range work.Secrets {
		if content, known := secrets[s.Name]; known && !s.IgnoreUpdates {
			matter[s.Name] = content
		}
	}
	return digest(work, Version(version), matter)
}

// Revision returns a digest of what makes a member begin again when it changes: the hash, and the selector of nodes.
func Revision(hash string, pace *v1.PlanPace) (string, error) { return digest(hash, pace.NodeSelector) }

// digest of the JSON of parts, which is canonical: Go writes fields in their order and the keys of maps sorted.
func digest(parts ...any) (string, error) {
	raw, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("make hash: %w", err)
	}
	sum := sha256.Sum224(raw)
	return hex.EncodeToString(sum[:]), nil
}
