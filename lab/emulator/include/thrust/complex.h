// torch's headers ask for it where CUDA is compiled.
#pragma once
#include <complex>

namespace thrust {

template <typename T>
struct complex : std::complex<T> {
  using std::complex<T>::complex;
  complex(const std::complex<T>& x) : std::complex<T>(x) {}
};
template <typename T>
complex<T> polar(T size, T angle = T()) {
  return std::polar(size, angle);
}

}  // namespace thrust
