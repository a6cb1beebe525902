// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/set"
)

//go:embed guards.yaml
var guards string

// Guards returns the admission policies for members. They restrict who may move a namespace between projects, change
// the pod security of a namespace, open isolated projects to a namespace, and change objects with a set's label. The
// policies are the same in all members.
func Guards() (set.Content, error) {
	var content set.Content
	for document := range strings.SplitSeq(guards, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return set.Content{}, fmt.Errorf("read guards.yaml: %w", err)
		}
		set.AddLabels(o, set.Labels(set.Guards))
		content.Objects = append(content.Objects, o)
	}
	return content, nil
}
