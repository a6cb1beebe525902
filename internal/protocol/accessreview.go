// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/untrusted"
)

// PathAccessReview is the path at which an API server reviews the caller's own rights.
const PathAccessReview = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// ReviewAccess asks an API server whether the user named in the header has a right. The url must end with
// PathAccessReview.
func ReviewAccess(
	ctx context.Context, by http.RoundTripper, url string, as http.Header, right authorizationv1.ResourceAttributes,
) (bool, error) {
	body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
	})
	if err != nil {
		return false, fmt.Errorf("encode review: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("make review: %w", err)
	}
	request.Header = as.Clone()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := by.RoundTrip(request)
	if err != nil {
		return false, err // the caller adds the context
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return false, fmt.Errorf("answered %s", response.Status)
	}
	var review authorizationv1.SelfSubjectAccessReview
	if err := untrusted.ReadJSON(response.Body, &review, untrusted.Large()); err != nil {
		return false, fmt.Errorf("decode review: %w", err)
	}
	if review.Kind != "SelfSubjectAccessReview" {
		return false, errors.New("the answer is not a SelfSubjectAccessReview")
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
