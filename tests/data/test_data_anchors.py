from atlas.data.anchors import anchor_texts


def test_anchors_differ_and_the_first_of_many_are_those_of_few():
    many = anchor_texts(200, 5)
    assert len(set(many)) == 200 and all(text.strip() for text in many)
    assert many[:7] == anchor_texts(7, 5) != anchor_texts(7, 6)
