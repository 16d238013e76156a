// What a thread does for one center: the same on a CPU and a GPU. Points is an accessor [n][3].
#pragma once
#include <c10/macros/Macros.h>

#include <cstdint>

template <typename T, typename Point>
C10_HOST_DEVICE inline T squared_distance(const Point& a, const Point& b) {
  const T x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
  return x * x + y * y + z * z;
}

// The first points within the radius, in their order. What is left repeats the first of them, and
// is 0 where there is none.
template <typename T, typename Points, typename Point, typename Row>
C10_HOST_DEVICE inline void find_in_ball(const Points& xyz, const Point& center, T radius,
                                         Row index) {
  int found = 0;
  const int n = xyz.size(0), count = index.size(0);
  for (int i = 0; i < n && found < count; ++i) {
    if (squared_distance<T>(xyz[i], center) >= radius * radius) continue;
    index[found] = i;
    ++found;
  }
  const int first = found ? index[0] : 0;
  for (; found < count; ++found) index[found] = first;
}

// The three nearest points, the nearest first; of equal ones the one that comes first.
template <typename T, typename Points, typename Point, typename Distances, typename Row>
C10_HOST_DEVICE inline void find_nearest(const Points& xyz, const Point& center,
                                         Distances distances, Row index) {
  const int n = xyz.size(0);
  for (int i = 0; i < n; ++i) {
    const T distance = squared_distance<T>(xyz[i], center);
    int place = i < 3 ? i : 3;  // the first ones fill the places
    while (place > 0 && distance < distances[place - 1]) {
      if (place < 3) {
        distances[place] = distances[place - 1];
        index[place] = index[place - 1];
      }
      --place;
    }
    if (place == 3) continue;
    distances[place] = distance;
    index[place] = i;
  }
}
